// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// One residual block as a whole, folded, rotated, or carried from one basis into another.

#include <cmath>
#include <utility>
#include <vector>

#include <rmsfold/fold/rotate.hpp>

namespace rmsfold {

/// norm → readers → mix → writer, added to the stream: \f$y = x + \mathrm{mix}(\mathrm{norm}(x)W_1^T+b_1, …)\,W_o^T + b_o\f$.
///
/// What `mix` does is not this library's business: it sees the readers' outputs only, which folds and rotations leave as they are.
/// @tparam Norm  `RMSNorm<S>`, `UnitRMSNorm<S>`, `LayerNorm<S>` or `UnitLayerNorm<S>`.
/// @tparam Mix   callable on a `std::vector<Matrix<T>>` of the readers' outputs, returning the writer's input: `SwiGLU`, `CausalAttention`, or your own.
template <Storage S, class Norm, class Mix>
struct Block {
  Norm norm;                       ///< reads the stream
  std::vector<Linear<S>> readers;  ///< ALL readers of the norm
  Mix mix;                         ///< the non-linearity between readers and writer
  Linear<S> writer;                ///< writes to the stream

  /// What the block adds to the stream. @param x `tokens x n`. @returns `tokens x n`. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> branch(const D& x) const {
    using T = typename D::Scalar;
    if (writer.out() != norm.dim()) detail::raise<ShapeError>("a block that reads a stream of width {} writes {} channels", norm.dim(), writer.out());
    const Matrix<T> z = norm.apply(x);
    std::vector<Matrix<T>> outputs;
    for (const Linear<S>& reader : readers) outputs.push_back(reader.apply(z));
    const Matrix<T> mixed = mix(outputs);
    return writer.apply(mixed);
  }

  /// The stream after the block. @param x `tokens x n`. @returns `tokens x n`. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x) const {
    return x + branch(x);
  }
};

/// \f$\mathrm{silu}(a)\odot b\f$ of two readers, gate and up. @note Source: Shazeer, GLU Variants Improve Transformer (2020), equation 6.
struct SwiGLU {
  /// @param outputs  gate, up: `tokens x m` each. @returns `tokens x m`. @throws ShapeError.
  template <Real T>
  [[nodiscard]] Matrix<T> operator()(const std::vector<Matrix<T>>& outputs) const {
    if (outputs.size() != 2 || outputs[0].cols() != outputs[1].cols()) detail::raise<ShapeError>("SwiGLU needs a gate and an up projection of one width");
    using std::exp;
    Matrix<T> result = outputs[1];
    for (Index i = 0; i < result.size(); ++i) {
      const T& gate = outputs[0].data()[i];
      result.data()[i] *= gate / (T(1) + exp(T(-gate)));
    }
    return result;
  }
};

/// Causal softmax attention with grouped queries over queries, keys and values of one sequence; positions are not encoded.
/// @note Source: Vaswani et al. (2017), equation 1; Ainslie et al., GQA (2023).
struct CausalAttention {
  Index heads = 1;     ///< query heads
  Index kv_heads = 1;  ///< key and value heads; query head h reads kv head h / (heads / kv_heads)

  /// @param outputs  queries `tokens x heads*d`, keys and values `tokens x kv_heads*d`. @returns `tokens x heads*d`. @throws ShapeError.
  template <Real T>
  [[nodiscard]] Matrix<T> operator()(const std::vector<Matrix<T>>& outputs) const {
    if (outputs.size() != 3 || kv_heads < 1 || heads < 1 || heads % kv_heads != 0 || outputs[0].cols() % heads != 0 ||
        outputs[1].cols() != outputs[0].cols() / heads * kv_heads || outputs[2].cols() != outputs[1].cols()) {
      detail::raise<ShapeError>("attention with {} heads ({} kv) needs queries, keys and values of fitting widths", heads, kv_heads);
    }
    using std::exp;
    using std::sqrt;
    const Index d = outputs[0].cols() / heads;
    const T scale = T(1) / sqrt(T(static_cast<double>(d)));
    Matrix<T> result(outputs[0].rows(), outputs[0].cols());
    for (Index head = 0; head < heads; ++head) {
      const Index kv = head / (heads / kv_heads);
      for (Index t = 0; t < result.rows(); ++t) {
        RowVector<T> weights = outputs[0].row(t).segment(head * d, d) * outputs[1].block(0, kv * d, t + 1, d).transpose() * scale;
        const T largest = weights.maxCoeff();
        for (T& weight : weights) weight = exp(T(weight - largest));
        weights /= weights.sum();
        result.row(t).segment(head * d, d) = weights * outputs[2].block(0, kv * d, t + 1, d);
      }
    }
    return result;
  }
};

/// Identity 2 on a whole block: the norm's gain moves into the readers. @throws ShapeError; RangeError when a product overflows `S`.
template <Storage S, class Mix>
[[nodiscard]] Block<S, UnitRMSNorm<S>, Mix> fold_gain(const Block<S, RMSNorm<S>, Mix>& block) {
  Folded<S> folded = fold_gain(block.norm, block.readers);
  return {folded.norm, std::move(folded.readers), block.mix, block.writer};
}

/// The block in the basis \f$x' = xQ\f$: \f$\mathrm{block}'(xQ) = \mathrm{block}(x)\,Q\f$. A gain that is still there admits signed permutations only.
/// @throws ShapeError; RangeError when a result overflows `S`.
template <Storage S, class Norm, class Mix, Isometry G>
[[nodiscard]] Block<S, Norm, Mix> rotate_block(const Block<S, Norm, Mix>& block, const G& q) {
  Block<S, Norm, Mix> result{rotate_norm(block.norm, q), {}, block.mix, rotate_writer(block.writer, q)};
  for (const Linear<S>& reader : block.readers) result.readers.push_back(rotate_reader(reader, q));
  return result;
}

/// Identity 5 on a whole block: gain and rotation composed in `Wide<S>`, rounded once. @throws ShapeError; RangeError when a result overflows `S`.
template <Storage S, class Mix, Isometry G>
[[nodiscard]] Block<S, UnitRMSNorm<S>, Mix> fold_and_rotate(const Block<S, RMSNorm<S>, Mix>& block, const G& q) {
  Folded<S> folded = fold_and_rotate(block.norm, block.readers, q);
  return {folded.norm, std::move(folded.readers), block.mix, rotate_writer(block.writer, q)};
}

/// A block that reads the stream in one basis and leaves it in another: \f$y = x\,Q_{in}^TQ_{out} + \mathrm{branch}(x)\f$ (identity 12).
///
/// The adapter on the shortcut costs two rotations of the stream at run time; with a Hadamard basis \f$O(n\log n)\f$ per token.
/// @note Source: Ashkboos et al., SliceGPT (2024), section 3.3, where the adapter is one dense matrix per block.
template <Storage S, class Norm, class Mix, Isometry In, Isometry Out>
struct AdaptedBlock {
  Block<S, Norm, Mix> block;  ///< reads in the basis `in`, writes in the basis `out`
  In in;                      ///< \f$Q_{in}\f$
  Out out;                    ///< \f$Q_{out}\f$

  /// The stream in the next basis. @param x `tokens x n`, in the basis `in`. @returns `tokens x n`, in the basis `out`. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x) const {
    return act(out, act_transposed(in, x)) + block.branch(x);
  }
};

/// Identity 12: the block between two bases, \f$\mathrm{block}'(xQ_{in}) = \mathrm{block}(x)\,Q_{out}\f$; gain folded, everything rounded once.
/// @throws ShapeError; RangeError when a result overflows `S`.
template <Storage S, class Mix, Isometry In, Isometry Out>
[[nodiscard]] AdaptedBlock<S, UnitRMSNorm<S>, Mix, In, Out> adapt_block(const Block<S, RMSNorm<S>, Mix>& block, const In& in, const Out& out) {
  Folded<S> folded = fold_and_rotate(block.norm, block.readers, in);
  return {{folded.norm, std::move(folded.readers), block.mix, rotate_writer(block.writer, out)}, in, out};
}

}  // namespace rmsfold
