// SPDX-License-Identifier: MIT
// Haar-random matrices against Eigen's QR of a matrix of the same size, which is the usual way to them: the factorisation alone, and with Q formed. That the
// usual way draws twice as many normals and fixes signs is not counted.

#include <rmsfold/group/haar.hpp>

#include <Eigen/QR>
#include <string>

#include "support.hpp"

namespace rmsfold::bench {
namespace {

void draw(benchmark::State& state, Index n, bool forms_q) {
  Random random(1);
  const Matrix<double> gaussian = normal_matrix(n, n, random);
  const double elements = static_cast<double>(n) * static_cast<double>(n);
  side_by_side(
      state, 1, 1, elements, 0,
      [&](Index, Index) {
        Random fresh(1);
        const Orthogonal<double> q = haar_orthogonal<double>(n, fresh);
        benchmark::DoNotOptimize(q.matrix().data());
      },
      [&](Index, Index) {
        const Eigen::HouseholderQR<Matrix<double>> qr(gaussian);
        Matrix<double> q;
        if (forms_q) q = qr.householderQ();
        benchmark::DoNotOptimize(qr.matrixQR().data());
        benchmark::DoNotOptimize(q.data());
      });
  state.counters.erase("GB/s");
}

}  // namespace
}  // namespace rmsfold::bench

int main(int argc, char** argv) {
  using namespace rmsfold;
  for (const Index n : {1024, 4096}) {
    for (const bool forms_q : {false, true}) {
      const std::string name = (forms_q ? "against_qr_and_q/" : "against_qr/") + std::to_string(n);
      benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { bench::draw(state, n, forms_q); })
          ->Iterations(n > 1024 ? 3 : 9)
          ->Repetitions(1)  // seconds each
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
