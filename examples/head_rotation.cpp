// SPDX-License-Identifier: MIT
// Values rotated per kv head, undone in the output projection: attention weights never see it. With grouped queries and
// biases.
#include <cmath>

#include <rmsfold/rmsfold.hpp>

int main() {
  using namespace rmsfold;
  const Index hidden = 40, head_dim = 12, heads = 4, kv_heads = 2;  // head_dim is not hidden / heads
  Random random(51);
  const auto linear = [&](Index out, Index in) {
    return Linear<double>{normal_matrix(out, in, random) / std::sqrt(static_cast<double>(in)),
                          RowVector<double>(normal_matrix(1, out, random))};
  };
  const Linear<double> query = linear(heads * head_dim, hidden), key = linear(kv_heads * head_dim, hidden);
  const ValueOutput<double> pair{linear(kv_heads * head_dim, hidden), linear(hidden, heads * head_dim)};
  const Matrix<double> x = normal_matrix(9, hidden, random);
  const CausalAttention attention{heads, kv_heads};
  const auto output = [&](const ValueOutput<double>& p) {
    return Matrix<double>(
        p.output.apply(attention(std::vector<Matrix<double>>{query.apply(x), key.apply(x), p.value.apply(x)})));
  };
  const Matrix<double> want = output(pair);
  const auto off = [&](const ValueOutput<double>& p) { return (output(p) - want).norm() / want.norm(); };

  const BlockDiagonal<Hadamard> r(
      {Hadamard::random(head_dim, random), Hadamard::random(head_dim, random)});  // one per kv head
  const ValueOutput<double> rotated = rotate_heads(pair, r);
  const double right = off(rotated);

  // Query head h reads kv head h / 2, not h % 2.
  const BlockDiagonal<Hadamard> tiled({r.blocks()[0], r.blocks()[1], r.blocks()[0], r.blocks()[1]});
  const double wrong_group = off({rotated.value, rotate_reader(pair.output, tiled)});
  const double forgotten_bias = off({{rotated.value.weight, pair.value.bias}, rotated.output});

  // The value bias itself can move behind attention, whose rows sum to one.
  const double moved_bias = off(fold_value_bias(pair, head_dim, AttentionRows::sum_to_one));

  fmt::print("values rotated per kv head           {:.2e}\n", right);
  fmt::print("kv head h % n_kv instead of h / g    {:.2e}   WRONG\n", wrong_group);
  fmt::print("value bias not rotated               {:.2e}   WRONG\n", forgotten_bias);
  fmt::print("value bias moved into output bias    {:.2e}\n", moved_bias);
  return right < 1e-13 && moved_bias < 1e-13 && wrong_group > 0.01 && forgotten_bias > 0.01 ? 0 : 1;
}
