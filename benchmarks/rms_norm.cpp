// SPDX-License-Identifier: MIT
// RMSNorm with its gain, [2048, 4096], against memcpy of the same bytes, and in place against other people's in place.

#include <rmsfold/norm/rms_norm.hpp>

#include <cmath>
#include <cstring>
#include <span>
#include <string>

#include <rmsfold/core/random.hpp>

#include "support.hpp"

#ifdef RMSFOLD_GGML  // where a package brings it, such as PyPI's libggml-python
#include <ggml-cpu.h>
#include <ggml.h>
#endif

namespace rmsfold::bench {
namespace {

constexpr Index n = 4096;
constexpr Index rows = 2048;
constexpr double eps = 1e-6;

template <class S>
RMSNorm<S> random_norm() {
  Random random(1);
  RowVector<S> weight(n);
  for (S& w : weight.reshaped()) w = round_to<S>(1 + 0.1 * random.normal());
  return RMSNorm<S>(weight, eps);
}

/// Rows of normal numbers. In place they are normalised over and over, which leaves their size.
template <class S>
void fill(S* x) {
  Random random(2);
  for (Index i = 0; i < n * rows; ++i) x[i] = round_to<S>(random.normal());
}

template <class S>
std::span<S> some(S* x, Index first, Index last) {
  return {x + first * n, static_cast<std::size_t>((last - first) * n)};
}

/// Against `other(x, y, first, last)`: from x to y, or x in place.
template <class S, class Other>
void against(benchmark::State& state, bool in_place, const Other& other) {
  const RMSNorm<S> norm = random_norm<S>();
  Buffer<S> x(n * rows), y(n * rows), z(n * rows);
  fill(x.data());
  fill(z.data());
  S* const to = in_place ? x.data() : y.data();
  const double elements = static_cast<double>(n) * static_cast<double>(rows);
  side_by_side(
      state, static_cast<int>(state.range(0)), rows, elements, 2 * elements * sizeof(S),
      [&](Index first, Index last) {
        norm.apply(some(x.data(), first, last), some(to, first, last));
        benchmark::ClobberMemory();
      },
      [&](Index first, Index last) {
        other(z.data(), y.data(), first, last);
        benchmark::ClobberMemory();
      });
}

template <class S>
void copy(S* x, S* y, Index first, Index last) {
  std::memcpy(static_cast<void*>(y + first * n), x + first * n,
              static_cast<std::size_t>((last - first) * n) * sizeof(S));
}

/// The same as an expression of Eigen's, with its 16-bit type.
template <class S, class E>
struct Expression {
  Eigen::Array<float, 1, Eigen::Dynamic> gain = random_norm<S>().gain().template cast<float>().array();

  void operator()(S* x, S*, Index first, Index last) const {
    using Row = Eigen::Array<E, 1, Eigen::Dynamic>;
    for (Index t = first; t < last; ++t) {
      Eigen::Map<Row> row(reinterpret_cast<E*>(x + t * n), n);
      const float mean = row.template cast<float>().square().sum() / static_cast<float>(n);
      row = (row.template cast<float>() * (1 / std::sqrt(mean + static_cast<float>(eps))) * gain).template cast<E>();
    }
  }
};

#ifdef RMSFOLD_GGML
/// ggml's norm and its product with the gain, on one thread.
class Ggml {
 public:
  Ggml() : context_(ggml_init({std::size_t{200} << 20, nullptr, false})) {
    ggml_tensor* x = ggml_new_tensor_2d(context_, GGML_TYPE_F32, n, rows);
    ggml_tensor* gain = ggml_new_tensor_1d(context_, GGML_TYPE_F32, n);
    fill(static_cast<float*>(ggml_get_data(x)));
    const RowVector<float> g = random_norm<float>().weight();
    std::memcpy(ggml_get_data(gain), g.data(), static_cast<std::size_t>(n) * sizeof(float));
    graph_ = ggml_new_graph(context_);
    ggml_tensor* y = ggml_rms_norm_inplace(context_, x, static_cast<float>(eps));
    ggml_build_forward_expand(graph_, ggml_mul_inplace(context_, y, gain));
  }
  ~Ggml() { ggml_free(context_); }
  Ggml(const Ggml&) = delete;
  Ggml& operator=(const Ggml&) = delete;
  void operator()(float*, float*, Index, Index) const { ggml_graph_compute_with_ctx(context_, graph_, 1); }

 private:
  ggml_context* context_;
  ggml_cgraph* graph_;
};
#endif

template <class Run>
void add(const std::string& name, bool two, const Run& run) {
  auto* const registered = benchmark::RegisterBenchmark(name.c_str(), run)->ArgName("threads")->Arg(1);
  if (two) registered->Arg(2);
  registered->Iterations(25)->UseManualTime()->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace rmsfold::bench

int main(int argc, char** argv) {
  using namespace rmsfold;
  using benchmark::State;
  for (const bool in_place : {true, false}) {
    const std::string where = in_place ? "/in_place" : "/out_of_place";
    bench::add("memcpy/f32" + where, true, [=](State& s) { bench::against<float>(s, in_place, bench::copy<float>); });
    bench::add("memcpy/bf16" + where, true, [=](State& s) { bench::against<BF16>(s, in_place, bench::copy<BF16>); });
  }
  bench::add("eigen/f32", false, [](State& s) { bench::against<float>(s, true, bench::Expression<float, float>()); });
  bench::add("eigen/bf16", false,
             [](State& s) { bench::against<BF16>(s, true, bench::Expression<BF16, Eigen::bfloat16>()); });
#ifdef RMSFOLD_GGML
  bench::add("ggml/f32", false, [](State& s) { bench::against<float>(s, true, bench::Ggml()); });
#endif
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
