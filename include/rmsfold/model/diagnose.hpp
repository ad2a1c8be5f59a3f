// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Naming the mistake: a tensor that is not what it should be is compared with what the usual mistakes would have made of it.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <rmsfold/model/compare.hpp>

namespace rmsfold::model {

/// Mistakes that other findings can be combined with.
enum class Mistake { other, norm_not_reset, gain_not_folded, naive_merge };

/// What probably happened to a tensor.
struct Diagnosis {
  std::string text;                  ///< in words
  Mistake mistake = Mistake::other;  ///< for programs
};

namespace detail {

/// One multiplication along an axis, as it may have been carried out.
struct Move {
  Factor factor;
  bool transposed = false;
  friend bool operator==(const Move&, const Move&) = default;
};

inline constexpr std::string_view mean_was_removed = "its mean was removed, which is a LayerNorm step: for an RMSNorm nothing compensates it";

/// A way a tensor may have come about.
struct Suspicion {
  std::vector<Move> moves;
  bool mean_removed = false;
  std::string what;
  Mistake mistake = Mistake::other;
};

/// A piece of a tensor that the moves can be carried out on: whole rows, whole columns, or all.
class Specimen {
 public:
  static constexpr Index most = 256;

  Specimen(const Model& a, const Model& b, const Plan& plan, const TensorPlan& planned) : plan_(plan), dtype_(a.dtype(planned.name)) {
    const Shape& shape = a.shape(planned.name);
    is_vector_ = shape.size() == 1;
    const bool mixes_rows = !is_vector_ && std::any_of(planned.factors.begin(), planned.factors.end(), [](const Factor& f) { return f.axis == 0; });
    if (is_vector_) {
      before_ = a.read_vector(planned.source);
      after_ = b.read_vector(planned.name);
    } else {
      const Index all = static_cast<Index>(shape[0]);
      const Index rows = mixes_rows ? all : (std::min)(all, most);
      before_ = a.read_rows(planned.source, 0, rows);
      after_ = b.read_rows(planned.name, 0, rows);
    }
    mixes_rows_ = mixes_rows;
    planned_ = planned.factors.size();
  }

  [[nodiscard]] const Matrix<double>& found() const noexcept { return after_; }

  /// Whether the moves made what was found, to within rounding.
  [[nodiscard]] bool matches(const Suspicion& suspicion, double basis_error) const {
    Matrix<double> w = before_;
    if (suspicion.mean_removed) remove_mean(w);
    double terms = 2;
    for (const Move& move : suspicion.moves) {
      if (!apply(move, w)) return false;
      terms += static_cast<double>(w.rows() + w.cols());
    }
    const double composition = (2 * gamma_n(terms, 0x1p-53) + basis_error) * w.norm();
    // Whoever does more than was planned stores the weights in between: the error of one storage rounding, rotated along.
    const bool was_stored_between = suspicion.moves.size() > planned_ || suspicion.mean_removed;
    const Eigen::VectorXd row_norms = w.rowwise().norm();
    const RowVector<double> col_norms = w.colwise().norm();
    return visit_dtype(dtype_, [&](auto scalar) {
      using S = decltype(scalar);
      const double storage = was_stored_between ? 2 * unit_roundoff<S>() : 0;
      for (Index i = 0; i < w.rows(); ++i) {
        for (Index j = 0; j < w.cols(); ++j) {
          const double error = std::fabs(after_(i, j) - w(i, j));
          if (!is_finite(error) || !(error <= stored_bound<S>(w(i, j), composition + storage * (row_norms[i] + col_norms[j])))) return false;
        }
      }
      return true;
    });
  }

 private:
  void remove_mean(Matrix<double>& w) const {
    if (mixes_rows_) {
      const RowVector<double> mean = w.colwise().mean();
      w.rowwise() -= mean;
    } else {
      const Eigen::VectorXd mean = w.rowwise().mean();
      w.colwise() -= mean;
    }
  }

  [[nodiscard]] bool apply(const Move& move, Matrix<double>& w) const {
    const bool down = move.factor.axis == 0 && !is_vector_;
    const Index outer = down ? 1 : w.rows();
    const Index inner = down ? w.cols() : 1;
    const Index extent = down ? w.rows() : w.cols();
    const auto act = [&](const auto& q) {
      if (q.dim() != extent) return false;
      if (move.transposed) {
        q.inverse().apply(w.data(), outer, inner);
      } else {
        q.apply(w.data(), outer, inner);
      }
      return true;
    };
    switch (move.factor.kind) {
      case Factor::Kind::gain: {
        const RowVector<double>& gain = plan_.site(move.factor.of).gain;
        if (gain.size() != extent) return false;
        if (down) {
          w = gain.asDiagonal() * w;
        } else {
          w = w * gain.asDiagonal();
        }
        return true;
      }
      case Factor::Kind::scale:
      case Factor::Kind::inverse_gain: return false;
      case Factor::Kind::moves: return act(plan_.basis.stream->as_signed_permutation()->unsigned_part());
      case Factor::Kind::rotation:
        if (move.factor.of == residual) return act(*plan_.basis.stream);
        const BlockDiagonal<Rotation>& heads = plan_.basis.heads.at(move.factor.of);
        return extent % heads.dim() == 0 && act(heads.repeated(extent / heads.dim()));
    }
    return false;
  }

  const Plan& plan_;
  Dtype dtype_;
  bool is_vector_ = false;
  bool mixes_rows_ = false;
  std::size_t planned_ = 0;
  Matrix<double> before_, after_;
};

[[nodiscard]] inline std::string name_of(const Factor& factor) {
  if (factor.kind == Factor::Kind::gain) return "the gain of " + factor.of;
  if (factor.of == residual) return "the rotation";
  return "the rotation of " + factor.of;
}

[[nodiscard]] inline std::string done(const Factor& factor) { return factor.kind == Factor::Kind::gain ? "folded in" : "merged in"; }

/// The moves as planned, with one of them gone wrong in each way that happens.
[[nodiscard]] inline std::vector<Suspicion> single_mistakes(const std::vector<Move>& planned) {
  std::vector<Suspicion> all;
  for (std::size_t i = 0; i < planned.size(); ++i) {
    const Factor& factor = planned[i].factor;
    Suspicion missing{planned, false, name_of(factor) + " was not " + done(factor), factor.kind == Factor::Kind::gain ? Mistake::gain_not_folded : Mistake::other};
    missing.moves.erase(missing.moves.begin() + static_cast<std::ptrdiff_t>(i));
    all.push_back(std::move(missing));
    Suspicion doubled{planned, false, name_of(factor) + " was " + done(factor) + " twice", Mistake::other};
    doubled.moves.insert(doubled.moves.begin() + static_cast<std::ptrdiff_t>(i), planned[i]);
    all.push_back(std::move(doubled));
    if (factor.kind != Factor::Kind::gain) {
      Suspicion transposed{planned, false, name_of(factor) + " was " + done(factor) + " from the wrong side (its transpose)", Mistake::other};
      transposed.moves[i].transposed = true;
      all.push_back(std::move(transposed));
    }
    if (i + 1 < planned.size() && planned[i + 1].factor.axis == factor.axis) {
      Suspicion swapped{planned, false, name_of(factor) + " was " + done(factor) + " after " + name_of(planned[i + 1].factor) + " instead of before", Mistake::other};
      std::swap(swapped.moves[i], swapped.moves[i + 1]);
      all.push_back(std::move(swapped));
    }
  }
  return all;
}

[[nodiscard]] inline std::vector<Suspicion> suspicions(const TensorPlan& planned) {
  std::vector<Move> moves;
  for (const Factor& factor : planned.factors) moves.push_back({factor});
  std::vector<Suspicion> all;
  if (moves.size() > 1) all.push_back({{}, false, "it was not transformed at all", Mistake::other});
  for (Suspicion& one : single_mistakes(moves)) {
    const std::vector<Suspicion> further = single_mistakes(one.moves);
    const std::string first = one.what;
    all.push_back(std::move(one));
    for (const Suspicion& two : further) all.push_back({two.moves, false, first + ", and " + two.what, Mistake::other});
  }
  all.push_back({moves, true, std::string(mean_was_removed), Mistake::other});
  // Two mistakes that cancel explain nothing.
  std::erase_if(all, [&](const Suspicion& s) { return !s.mean_removed && s.moves == moves; });
  // Simple explanations first.
  std::stable_sort(all.begin(), all.end(), [](const Suspicion& x, const Suspicion& y) {
    const auto parts = [](const Suspicion& s) { return s.what.find(", and ") != std::string::npos; };
    return parts(x) < parts(y);
  });
  return all;
}

/// The one channel whose gain is off, when the rotation of a reader is undone: in words, or empty.
[[nodiscard]] inline std::string off_channel(const Model& a, const Model& b, const Plan& plan, const TensorPlan& planned) {
  const bool is_rotated_reader = planned.factors.size() >= 2 && planned.factors[0].kind == Factor::Kind::gain && planned.factors[0].axis == 1 &&
                                 planned.factors[1].kind == Factor::Kind::rotation && planned.factors[1].axis == 1 && planned.factors.size() == 2;
  if (!is_rotated_reader) return {};
  const Index rows = (std::min<Index>)(static_cast<Index>(a.shape(planned.name)[0]), 4096);
  const Matrix<double> w = a.read_rows(planned.source, 0, rows);
  const Matrix<double> folded = act_transposed(*plan.basis.stream, b.read_rows(planned.name, 0, rows));
  const RowVector<double>& gain = plan.site(planned.factors[0].of).gain;
  // Least squares gain of every channel, and how many standard errors it is from what it should be; rounding noise is the same everywhere.
  RowVector<double> error(w.cols()), ratio(w.cols());
  for (Index j = 0; j < w.cols(); ++j) {
    const double weight = w.col(j).norm();
    const double found = weight > 0 ? w.col(j).dot(folded.col(j)) / (weight * weight) : gain[j];
    error[j] = std::fabs(found - gain[j]) * weight;
    ratio[j] = found / gain[j];
  }
  std::vector<double> sorted(error.data(), error.data() + error.size());
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
  Index worst = 0;
  const double largest = error.maxCoeff(&worst);
  const double typical = sorted[sorted.size() / 2];
  const auto stands_out = [&](double e) { return !(e <= (std::max)(6 * typical, largest / 8)); };
  if (!is_finite(largest) || largest < 8 * typical || std::count_if(error.data(), error.data() + error.size(), stands_out) != 1) return {};
  return fmt::format("channel {} was folded with {:.6g} times its gain", worst, ratio[worst]);
}

}  // namespace detail

/// The likely mistake behind a tensor that failed its comparison, in words; names the norm or the factor. Reads the tensor again.
[[nodiscard]] inline Diagnosis diagnose(const Model& a, const Model& b, const Plan& plan, const TensorPlan& planned, const TensorComparison& comparison,
                                        double basis_error) {
  using detail::Suspicion;
  const Graph& graph = a.graph();
  if (a.shape(planned.name).size() > 2 || !planned.absorbs.empty()) return {"it is not what the plan makes of it"};
  const detail::Specimen specimen(a, b, plan, planned);
  const auto matches = [&](std::vector<detail::Move> moves) { return specimen.matches({std::move(moves), false, "", Mistake::other}, basis_error); };
  if (a.has_head() && planned.name == a.head_tensor() && b.source_of(planned.name) != planned.name) {
    return {"the head is still tied to the embedding, although the two must differ: store it and set the tie flag false"};
  }
  const Suspicion as_it_is{{}, false, "", Mistake::other};
  TensorPlan untouched;
  untouched.name = planned.name;
  untouched.source = b.embedding_tensor();
  if (a.has_head() && planned.name == a.head_tensor() && plan.tensors[static_cast<std::size_t>(a.param_index(a.embedding_tensor()))].factors != planned.factors &&
      detail::Specimen(b, b, plan, untouched).matches(as_it_is, 0)) {
    return {"the head is a copy of the embedding: they were transformed as one tensor, as if tied, although the two must differ"};
  }
  const auto site = std::find_if(plan.sites.begin(), plan.sites.end(), [&](const Site& s) { return graph.params[*s.norm->weight].name == planned.name; });
  if (site != plan.sites.end()) {
    const double neutral = site->norm->row->gain == GainConvention::plain ? 1 : 0;
    const Factor moved{Factor::Kind::moves, 0, std::string(residual)};
    const Factor turned{Factor::Kind::rotation, 0, std::string(residual)};
    const bool permuted = plan.basis.stream && plan.basis.stream->as_signed_permutation();
    if (planned.action == TensorPlan::Action::neutralise) {
      if (matches({})) return {fmt::format("the norm was not reset to {}: its readers have absorbed the gain, which is now applied twice", planned.fill), Mistake::norm_not_reset};
      if (permuted && matches({{moved}})) return {"the norm was transported instead of reset: its gain is applied twice", Mistake::norm_not_reset};
    } else {
      if ((specimen.found().array() == neutral).all()) return {fmt::format("the norm was reset to {}, although its gain was folded into no reader", neutral)};
      if (plan.basis.stream && matches({})) return {"the gain was not transported by the permutation"};
      if (permuted && matches({{turned}})) return {"the gain was given the permutation's signs: a gain moves without them"};
      if (permuted && matches({{moved, true}})) return {"the gain was moved by the inverse permutation"};
      if (permuted && matches({{moved}, {moved}})) return {"the gain was moved by the permutation twice"};
    }
    return {"its gain is none that the usual mistakes would leave"};
  }
  if (planned.action == TensorPlan::Action::neutralise) return {"the norm's bias was not reset to 0, although its readers' biases have taken it in"};
  if (planned.factors.empty()) {
    for (const std::size_t axis : {std::size_t{0}, std::size_t{1}}) {
      const Factor turned{Factor::Kind::rotation, axis, std::string(residual)};
      for (const bool transposed : {false, true}) {
        if (plan.basis.stream && axis < a.shape(planned.name).size() && matches({{turned, transposed}})) {
          return {"it was rotated, although it does not live in the residual stream"};
        }
      }
    }
    if (specimen.matches({{}, true, "", Mistake::other}, 0)) return {std::string(detail::mean_was_removed)};
    return {"it was changed, although nothing that was planned concerns it"};
  }
  for (const Suspicion& suspicion : detail::suspicions(planned)) {
    if (specimen.matches(suspicion, basis_error)) return {suspicion.what, suspicion.mistake};
  }
  if (comparison.single_column >= 0) {
    return {fmt::format("only input channel {} is off, by a factor of about {:.6g}: one entry of what was folded or merged is wrong", comparison.single_column,
                        comparison.column_ratio)};
  }
  if (std::string channel = detail::off_channel(a, b, plan, planned); !channel.empty()) return {std::move(channel)};
  return {"no usual mistake explains it"};
}

}  // namespace rmsfold::model
