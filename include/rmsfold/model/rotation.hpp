// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Rotations chosen at run time: what a user asked for, and the matrices that come of it.

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <rmsfold/group/block_diagonal.hpp>
#include <rmsfold/group/embed.hpp>
#include <rmsfold/group/fixes_ones.hpp>
#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/hadamard.hpp>
#include <rmsfold/group/hadamard_fixing_ones.hpp>
#include <rmsfold/group/polar.hpp>
#include <rmsfold/io/hash.hpp>
#include <rmsfold/io/safetensors.hpp>
#include <rmsfold/model/graph.hpp>
#include <rmsfold/tensor/convert.hpp>

namespace rmsfold::model {

/// Where the rotation of a step comes from.
enum class RotationKind { none, permutation, signed_permutation, hadamard, orthogonal, file };

/// Name on the command line and in the manifest.
[[nodiscard]] constexpr std::string_view name_of(RotationKind kind) noexcept {
  constexpr std::array<std::string_view, 6> names{"none", "permutation", "signed-permutation", "hadamard", "orthogonal", "file"};
  return names[static_cast<std::size_t>(kind)];
}

/// The kind of that name; nothing when there is none.
[[nodiscard]] constexpr std::optional<RotationKind> rotation_kind_from_name(std::string_view name) noexcept {
  for (const RotationKind kind : {RotationKind::none, RotationKind::permutation, RotationKind::signed_permutation, RotationKind::hadamard,
                                  RotationKind::orthogonal, RotationKind::file}) {
    if (name == name_of(kind)) return kind;
  }
  return std::nullopt;
}

/// Any of the rotation types, as one.
class Rotation {
 public:
  /// The smallest group of the lattice that holds every value of this type.
  static constexpr Gauge gauge = Gauge::orthogonal;

  /// One alternative of the variant.
  Rotation(SignedPermutation q) : q_(std::move(q)) {}   // NOLINT(google-explicit-constructor)
  /// One alternative of the variant.
  Rotation(Hadamard q) : q_(std::move(q)) {}  // NOLINT(google-explicit-constructor)
  /// One alternative of the variant.
  Rotation(HadamardFixingOnes q) : q_(std::move(q)) {}  // NOLINT(google-explicit-constructor)
  /// One alternative of the variant.
  Rotation(Orthogonal<double> q) : q_(std::move(q)) {}  // NOLINT(google-explicit-constructor)

  /// n.
  [[nodiscard]] Index dim() const {
    return std::visit([](const auto& q) { return q.dim(); }, q_);
  }
  /// \f$Q^T\f$.
  [[nodiscard]] Rotation inverse() const {
    return std::visit([](const auto& q) { return Rotation(q.inverse()); }, q_);
  }
  /// The signed permutation, when it is one: then nothing is rounded.
  [[nodiscard]] const SignedPermutation* as_signed_permutation() const noexcept { return std::get_if<SignedPermutation>(&q_); }
  /// The Hadamard rotation, when it is one.
  [[nodiscard]] const Hadamard* as_hadamard() const noexcept { return std::get_if<Hadamard>(&q_); }
  /// The dense matrix, when it is stored as one.
  [[nodiscard]] const Orthogonal<double>* as_dense() const noexcept { return std::get_if<Orthogonal<double>>(&q_); }

  /// Multiplies the middle axis of `[outer, dim, inner]` by Q, in place; 16-bit storage scalars only by a signed permutation.
  template <class S>
    requires(Real<S> || Storage<S>)
  void apply(S* data, Index outer, Index inner) const {
    std::visit(
        [&](const auto& q) {
          if constexpr (Real<S> || ExactIsometry<std::decay_t<decltype(q)>>) {
            q.apply(data, outer, inner);
          } else {
            rmsfold::detail::raise<InvariantError>("16-bit numbers cannot be rotated in place: that would round more than once");
          }
        },
        q_);
  }

  /// See `Isometry`.
  [[nodiscard]] double orthogonality_defect() const {
    return std::visit([](const auto& q) { return static_cast<double>(q.orthogonality_defect()); }, q_);
  }
  /// See `Isometry`.
  [[nodiscard]] double error_terms() const {
    return std::visit([](const auto& q) { return static_cast<double>(q.error_terms()); }, q_);
  }

 private:
  std::variant<SignedPermutation, Hadamard, HadamardFixingOnes, Orthogonal<double>> q_;
};

static_assert(Isometry<Rotation> && Isometry<BlockDiagonal<Rotation>>);

/// The smallest group of the lattice that holds this one, by its value.
[[nodiscard]] inline Gauge gauge_of(const Rotation& q) {
  if (const SignedPermutation* p = q.as_signed_permutation()) {
    if (*p == SignedPermutation::identity(p->dim())) return Gauge::identity;
    const Index negative = static_cast<Index>(std::count(p->sign().begin(), p->sign().end(), -1));
    if (negative == 0) return Gauge::permutation;
    return negative == p->dim() ? Gauge::permutation_up_to_sign : Gauge::signed_permutation;
  }
  try {
    static_cast<void>(FixesOnes<Rotation>(q));
    return Gauge::fixes_ones;
  } catch (const InvariantError&) {
    return Gauge::orthogonal;
  }
}

/// One transformation of a model, as asked for: enough to carry it out again.
struct Step {
  bool fold = false;                           ///< fold every foldable gain
  RotationKind rotation = RotationKind::none;  ///< change of basis of the residual stream
  std::uint64_t seed = 0;                      ///< of the rotation
  bool heads = false;                          ///< also rotate value / output pairs, one rotation per kv head
  bool keep_final_norm = false;                ///< leave the last hidden state what it is: fold all gains but that of the norm that writes it
  bool inverse = false;                        ///< merge \f$Q^T\f$ instead of Q
  std::filesystem::path file;                  ///< for `RotationKind::file`
};

/// The rotations of a step.
struct Basis {
  std::optional<Rotation> stream;                          ///< of the residual stream
  std::map<std::string, BlockDiagonal<Rotation>> heads;  ///< of the spaces of values, one block per kv head; empty: none
  std::vector<std::string> notes;                        ///< what had to be said while making them
};

namespace detail {

/// Q as an integer type when it is one exactly.
[[nodiscard]] inline Rotation simplest(Orthogonal<double> q) {
  if (std::optional<SignedPermutation> p = as_signed_permutation(q)) return *std::move(p);
  return q;
}

[[nodiscard]] inline Rotation random_rotation(RotationKind kind, Index n, std::uint64_t seed, std::uint64_t stream, bool fixing_ones = false) {
  Random random(seed, stream);
  if (fixing_ones && kind == RotationKind::orthogonal) return haar_fixing_ones<double>(n, random).rotation();
  if (fixing_ones && kind == RotationKind::hadamard) return HadamardFixingOnes::random(n, random);
  switch (kind) {
    case RotationKind::permutation: return SignedPermutation::random_permutation(n, random);
    case RotationKind::signed_permutation: return SignedPermutation::random(n, random);
    case RotationKind::orthogonal: return haar_orthogonal<double>(n, random);
    case RotationKind::hadamard:
    case RotationKind::file: return Hadamard::random(n, random);
    case RotationKind::none: return SignedPermutation::identity(n);
  }
  rmsfold::detail::raise<InvariantError>("not a rotation kind: {}", static_cast<int>(kind));
}

}  // namespace detail

/// Reads Q from a safetensors file: its tensor "rotation", or its only one: a square matrix (F64, F32, F16 or BF16), with \f$x' = xQ\f$.
///
/// A matrix stored in a narrow type is orthogonal to that type's rounding only; it is then projected to the nearest orthogonal one, and a note says so.
/// @throws FormatError; ShapeError when it is not n x n; InvariantError, naming both residuals, when it is not orthogonal to its own type's rounding.
[[nodiscard]] inline Rotation read_rotation(const io::SafetensorsFile& file, Index n, std::vector<std::string>& notes) {
  const std::string path = file.path().string();
  const io::TensorInfo* info = file.find("rotation");
  if (info == nullptr && file.tensors().size() == 1) info = &file.tensors().front();
  if (info == nullptr) {
    rmsfold::detail::raise<FormatError>("{}: a rotation file holds one tensor, or one called \"rotation\"; this one holds {} others", path,
                                        file.tensors().size());
  }
  const std::optional<Dtype> dtype = dtype_from_name(info->dtype);
  const std::uint64_t extent = static_cast<std::uint64_t>(n);
  if (!dtype || info->shape != Shape{extent, extent}) {
    rmsfold::detail::raise<ShapeError>("{}: tensor {} is {} {}; a rotation of this model's residual stream is F64, F32, F16 or BF16 [{}, {}]", path,
                                       io::printable(info->name), info->dtype, to_string(info->shape), n, n);
  }
  Matrix<double> q(n, n);
  load_as_double(*dtype, file.read(*info), {q.data(), static_cast<std::size_t>(q.size())});
  const OrthogonalityResidual error = orthogonality_residual(q);
  // Rounding entries of relative size u moves an entry of QᵀQ by at most 2u (Cauchy-Schwarz on two unit columns); 4√n as for every Q.
  const double unit = visit_dtype(*dtype, [](auto s) { return unit_roundoff<decltype(s)>(); });
  const double allowed = 8 * std::sqrt(static_cast<double>(n)) * unit;
  if (!is_finite(error.worst()) || !(error.worst() <= allowed)) {
    rmsfold::detail::raise<InvariantError>(
        "{}: not orthogonal: max|QᵀQ - I| = {:.3g}, max|QQᵀ - I| = {:.3g}, allowed for {}: {:.3g}; "
        "a scaled rotation is not absorbed by the norms either, since eps > 0 fixes the scale",
        path, error.columns, error.rows, name_of(*dtype), allowed);
  }
  if (error.worst() <= orthogonality_tolerance<double>(n)) return detail::simplest(Orthogonal<double>(std::move(q), Unchecked{}));
  PolarResult polar = nearest_orthogonal(q);
  if (!polar.converged) rmsfold::detail::raise<InvariantError>("{}: the projection to an orthogonal matrix did not converge", path);
  notes.push_back(fmt::format("{}: stored as {}, so it was projected to the nearest orthogonal matrix (max|QᵀQ - I| {:.2g} -> {:.2g}, entries moved by at most {:.2g})",
                              path, name_of(*dtype), error.worst(), polar.residual, polar.moved));
  return detail::simplest(std::move(polar.q));
}

/// Whether the residual stream is read by LayerNorms, so that a dense rotation of it has to fix the ones vector.
[[nodiscard]] inline bool subtracts_means(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.op == Op::norm && node.row->norm == NormKind::layer && graph.signals[node.reads.front()].space == residual;
  });
}

/// The rotation of the residual stream of a step, not inverted: from stream 0 of the seed, or from `step.file`. 
/// @param must_fix_ones  whether a random dense one is taken from those that fix the ones vector, see `subtracts_means`.
/// @throws RefusedError when there is no Hadamard matrix of this order; as `read_rotation` for files.
[[nodiscard]] inline Rotation make_stream_rotation(const Step& step, Index n, bool must_fix_ones, std::vector<std::string>& notes) {
  if (step.file.empty()) {
    const bool fixing_ones = must_fix_ones && (step.rotation == RotationKind::hadamard || step.rotation == RotationKind::orthogonal);
    if (fixing_ones) notes.push_back("the model has LayerNorms, so a rotation was taken that fixes the ones vector: they subtract the mean");
    return detail::random_rotation(step.rotation, n, step.seed, 0, fixing_ones);
  }
  return read_rotation(io::SafetensorsFile(step.file), n, notes);
}

/// Name of the file beside the manifest that holds dense matrices: tensors "rotation" and, for heads, "heads" `[layers * n_kv, head_dim, head_dim]`.
inline constexpr std::string_view rotation_file_name = "rmsfold.rotation";

/// Whether no seed makes the rotation of the stream again, so that its matrix goes beside the manifest: it is dense, or came from a file.
[[nodiscard]] inline bool stores_matrix(const Step& step, const Basis& basis) {
  return basis.stream && (step.rotation == RotationKind::file || basis.stream->as_dense() != nullptr);
}

/// The rotations of a step.
///
/// Random ones come from the seed: the stream's from its stream 0, that of kv head h of layer l from stream 1 + l·n_kv + h. Dense ones are taken from
/// `step.file` when it is given, which makes them the same on every machine.
/// @throws RefusedError when there is no Hadamard matrix of a size; as `read_rotation` for files.
[[nodiscard]] inline Basis make_basis(const Step& step, const Graph& graph) {
  const Dimensions& size = graph.size;
  Basis basis;
  if (step.rotation == RotationKind::none) return basis;
  const bool by_hadamard = step.rotation == RotationKind::hadamard || step.rotation == RotationKind::file;
  if (step.heads && size.head_dim == 0 && !graph.values.empty()) {
    rmsfold::detail::raise<RefusedError>("--heads: config.json does not say how many heads there are; leave it out");
  }
  if (step.heads && by_hadamard && size.head_dim > 0 && !hadamard_factors(size.head_dim)) {
    rmsfold::detail::raise<RefusedError>("--heads: there is no Hadamard matrix of order head_dim = {}; use --rotation orthogonal, or leave out --heads", size.head_dim);
  }
  basis.stream = make_stream_rotation(step, size.hidden, subtracts_means(graph), basis.notes);

  std::optional<io::SafetensorsFile> file;
  if (!step.file.empty()) file.emplace(step.file);
  Matrix<double> stored_heads;
  const Index head_count = static_cast<Index>(graph.values.size()) * size.kv_heads;
  const io::TensorInfo* heads_info = file && step.rotation == RotationKind::orthogonal ? file->find("heads") : nullptr;
  if (step.heads && heads_info != nullptr) {
    const Shape shape{static_cast<std::uint64_t>(head_count), static_cast<std::uint64_t>(size.head_dim), static_cast<std::uint64_t>(size.head_dim)};
    if (heads_info->shape != shape || heads_info->dtype != name_of(Dtype::f64)) {
      rmsfold::detail::raise<ShapeError>("{}: tensor heads is {} {}, not F64 {}", step.file.string(), heads_info->dtype, to_string(heads_info->shape), to_string(shape));
    }
    stored_heads.resize(head_count * size.head_dim, size.head_dim);
    load_as_double(Dtype::f64, file->read(*heads_info), {stored_heads.data(), static_cast<std::size_t>(stored_heads.size())});
  }
  Index stored = 0;
  for (std::size_t s = 0; step.heads && s < graph.values.size(); ++s) {
    std::vector<Rotation> blocks;
    for (Index head = 0; head < size.kv_heads; ++head, ++stored) {
      const std::uint64_t number = static_cast<std::uint64_t>(graph.values[s].layer * size.kv_heads + head);
      blocks.push_back(stored_heads.size() > 0
                           ? Rotation(Orthogonal<double>(Matrix<double>(stored_heads.middleRows(stored * size.head_dim, size.head_dim))))
                           : detail::random_rotation(step.rotation, size.head_dim, step.seed, 1 + number));
    }
    basis.heads.emplace(graph.values[s].name, BlockDiagonal<Rotation>(std::move(blocks)));
  }
  if (step.inverse) {
    basis.stream = basis.stream->inverse();
    for (auto& [space, heads] : basis.heads) heads = heads.inverse();
  }
  return basis;
}

}  // namespace rmsfold::model
