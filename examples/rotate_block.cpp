// SPDX-License-Identifier: MIT
// A whole MLP block in another basis of the residual stream: in one basis, and from one basis into another. Then with
// one step forgotten.
#include <cmath>

#include <rmsfold/rmsfold.hpp>

int main() {
  using namespace rmsfold;
  const Index n = 64, width = 176;
  Random random(21);
  const auto linear = [&](Index out, Index in) {
    return Linear<float>{
        rounded<float>(Matrix<double>(normal_matrix(out, in, random) / std::sqrt(static_cast<double>(in)))),
        std::nullopt};
  };
  RowVector<float> gain(n);
  for (float& g : gain) g = static_cast<float>(std::exp(0.5 * random.normal()));

  const Block<float, RMSNorm<float>, SwiGLU> block{
      RMSNorm<float>(gain, 1e-6), {linear(width, n), linear(width, n)}, {}, linear(n, width)};
  const Matrix<double> stream = normal_matrix(16, n, random);
  const Hadamard q = Hadamard::random(n, random);
  const Hadamard next = Hadamard::random(n, random);

  const auto print = [](const char* what, const BlockReport& report) {
    fmt::print("{:<44} {:>9.2e} {:>9.2e}  {}\n", what, report.distance, report.threshold,
               report.passed() ? "equal" : "DIFFERENT");
    return report.passed();
  };
  fmt::print("{:<44} {:>9} {:>9}\n", "block'(xQ) against block(x)Q", "distance", "allowed");

  const auto merged = fold_and_rotate(block, q);
  bool passed = print("gain folded, rotation merged", check_block(block, merged, q, q, stream));
  passed &= print("from basis Q into the next one, with adapter",
                  check_block(block, adapt_block(block, q, next), q, next, stream));

  auto forgotten = merged;
  forgotten.writer = block.writer;
  passed &= !print("the writer forgotten", check_block(block, forgotten, q, q, stream));
  const Block<float, RMSNorm<float>, SwiGLU> naive{
      block.norm,
      {rotate_reader(block.readers[0], q), rotate_reader(block.readers[1], q)},
      {},
      rotate_writer(block.writer, q)};
  passed &= !print("the gain left in the norm (naive merge)", check_block(block, naive, q, q, stream));
  passed &=
      !print("two bases without an adapter", check_block(block, adapt_block(block, q, next).block, q, next, stream));
  return passed ? 0 : 1;
}
