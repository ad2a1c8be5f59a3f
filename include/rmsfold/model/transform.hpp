// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Carrying out a plan: a new checkpoint directory, tensor by tensor, complete or not there at all.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <rmsfold/io/hash.hpp>
#include <rmsfold/io/output_directory.hpp>
#include <rmsfold/model/manifest.hpp>
#include <rmsfold/model/tensor_program.hpp>

namespace rmsfold::model {

/// Called as work gets done, with units done and units in all (bytes, or multiply-adds); it may throw `Interrupted`.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// How to run.
struct RunOptions {
  unsigned threads = 0;  ///< 0: one per processor; the bytes do not depend on it
  bool fsync = true;     ///< wait until the disk has everything before the output appears
  bool force = false;    ///< replace an existing output
  bool again = false;    ///< rotate a model that is rotated already
  Progress progress;     ///< may be empty
};

/// What a run did.
struct RunSummary {
  std::uint64_t bytes = 0;         ///< tensor bytes written
  std::size_t transformed = 0;     ///< tensors multiplied by factors
  std::size_t neutralised = 0;     ///< gains set to 1
  std::size_t copied = 0;          ///< tensors copied byte for byte
  std::vector<std::string> notes;  ///< for the user
};

namespace detail {

class Transformation {
 public:
  Transformation(const Model& model, const Plan& plan, const std::filesystem::path& out, const RunOptions& options)
      : model_(model), plan_(plan), options_(options), out_(out, model.checkpoint().directory(), options.force) {
    if (const auto path = model.checkpoint().manifest_path()) earlier_ = read_manifest(*path).steps;
    const std::vector<io::Json> open = open_rotations(earlier_);
    if (plan.step.rotation != RotationKind::none && !open.empty() && !options.again && !undoes(to_json(plan.step, plan.basis), open.back())) {
      rmsfold::detail::raise<RefusedError>(
          "{} was already rotated, as its {} says, and this step does not undo that; --again rotates it once more, --recipe {} --inverse undoes it",
          model.checkpoint().directory().string(), io::Checkpoint::manifest_name, (model.checkpoint().directory() / io::Checkpoint::manifest_name).string());
    }
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) plan_index_.emplace(plan.tensors[i].name, i);
    summary_.notes = out_.notes();
  }

  RunSummary run() {
    std::vector<Shard> shards = lay_out();
    for (const Shard& shard : shards) {
      for (const io::TensorInfo& tensor : shard.tensors) total_ += tensor.bytes();
    }
    for (Shard& shard : shards) write_shard(shard);
    write_index(shards);
    write_config();
    write_rotation();
    io::write_text_file(out_.path() / io::Checkpoint::manifest_name, make_manifest(model_, plan_, earlier_, hashes_).dump(1) + "\n");
    for (const std::string& name : model_.checkpoint().other_files()) {
      if (name != rotation_file_name) io::copy_file(model_.checkpoint().directory() / name, out_.path() / name);
    }
    report(0);
    out_.commit(options_.fsync);
    summary_.bytes = total_;
    return std::move(summary_);
  }

 private:
  struct Shard {
    std::string name;
    std::vector<io::TensorInfo> tensors;
    io::Metadata metadata;
    bool has_metadata = false;
  };

  [[nodiscard]] const TensorPlan* plan_of(const std::string& tensor) const {
    const auto found = plan_index_.find(tensor);
    return found == plan_index_.end() ? nullptr : &plan_.tensors[found->second];
  }

  void report(std::uint64_t bytes) {
    done_ += bytes;
    if (options_.progress) options_.progress(done_, total_);
  }

  /// The input's shards, with the head right after the embedding when the output stores one that the input does not, and without a stale one.
  [[nodiscard]] std::vector<Shard> lay_out() const {
    std::vector<Shard> shards;
    for (const io::Shard& from : model_.checkpoint().shards()) {
      Shard shard;
      shard.name = from.name;
      shard.has_metadata = from.file.has_metadata();
      if (shard.has_metadata) shard.metadata = from.file.metadata();
      for (const io::TensorInfo* tensor : from.tensors) {
        if (tensor->name == model_.head_tensor() && !plan_.head_is_written) continue;
        shard.tensors.push_back(*tensor);
        if (tensor->name == model_.embedding_tensor() && plan_.head_is_written && !model_.head_is_stored()) {
          io::TensorInfo head = *tensor;
          head.name = model_.head_tensor();
          shard.tensors.push_back(std::move(head));  // the same offsets: a stable sort by them keeps it behind the embedding
        }
      }
      shards.push_back(std::move(shard));
    }
    return shards;
  }

  void write_shard(Shard& shard) {
    const std::vector<std::size_t> order = io::data_order(shard.tensors);
    io::SafetensorsWriter writer(out_.path() / shard.name, shard.tensors, shard.has_metadata ? std::optional(shard.metadata) : std::nullopt, order);
    for (const std::size_t index : order) {
      const io::TensorInfo& tensor = writer.tensors()[index];
      const TensorPlan* planned = plan_of(tensor.name);
      TensorHashes& hashes = hashes_[tensor.name];
      if (planned == nullptr || planned->action == TensorPlan::Action::copy) {
        copy(planned ? planned->source : tensor.name, tensor, writer, index, hashes);
        ++summary_.copied;
      } else if (planned->action == TensorPlan::Action::neutralise) {
        neutralise(*planned, tensor, writer, index, hashes);
        ++summary_.neutralised;
      } else {
        multiply(*planned, writer, index, hashes);
        ++summary_.transformed;
      }
    }
    writer.finish(options_.fsync);
  }

  void copy(const std::string& source, const io::TensorInfo& tensor, io::SafetensorsWriter& writer, std::size_t index, TensorHashes& hashes) {
    io::Xxh3 hash;
    for (std::uint64_t at = 0; at < tensor.bytes();) {
      buffer_.resize(static_cast<std::size_t>((std::min<std::uint64_t>)(chunk_bytes, tensor.bytes() - at)));
      model_.checkpoint().read(source, at, buffer_);
      hash.update(buffer_);
      writer.write(index, at, buffer_);
      at += buffer_.size();
      report(buffer_.size());
    }
    hashes.before = hashes.after = hash.hex();
  }

  void neutralise(const TensorPlan& planned, const io::TensorInfo& tensor, io::SafetensorsWriter& writer, std::size_t index, TensorHashes& hashes) {
    const Dtype dtype = model_.dtype(planned.name);
    std::vector<std::byte> bytes = model_.checkpoint().read(planned.source);
    hashes.before = io::xxh3_hex(bytes);
    const std::vector<double> ones(bytes.size() / size_of(dtype), 1.0);
    static_cast<void>(store_rounded(dtype, ones, bytes));
    hashes.after = io::xxh3_hex(bytes);
    writer.write(index, 0, bytes);
    report(tensor.bytes());
  }

  void multiply(const TensorPlan& planned, io::SafetensorsWriter& writer, std::size_t index, TensorHashes& hashes) {
    const TensorProgram program(model_, plan_, planned);
    const Index at_once = program.rows_per_chunk(chunk_bytes);
    io::Xxh3 before, after;
    std::uint64_t non_finite = 0;
    for (Index row = 0; row < program.rows(); row += at_once) {
      const Index count = (std::min)(at_once, program.rows() - row);
      const std::uint64_t offset = static_cast<std::uint64_t>(row) * program.row_bytes();
      buffer_.resize(static_cast<std::size_t>(count) * program.row_bytes());
      result_.resize(buffer_.size());
      model_.checkpoint().read(planned.source, offset, buffer_);
      before.update(buffer_);
      non_finite += compute(program, planned, row, count);
      after.update(result_);
      writer.write(index, offset, result_);
      report(buffer_.size());
    }
    if (non_finite > 0) {
      summary_.notes.push_back(fmt::format("tensor {}: {} entries are infinite or NaN, in the input and so in the output", planned.name, non_finite));
    }
    hashes = {before.hex(), after.hex()};
  }

  std::uint64_t compute(const TensorProgram& program, const TensorPlan& planned, Index row, Index count) {
    const std::size_t element = size_of(program.dtype());
    const auto place = [&](Index r, Index c, Index cols) {
      const std::size_t at = static_cast<std::size_t>((r - row) * program.cols() + c) * element;
      return std::span(result_).subspan(at, static_cast<std::size_t>(cols) * element);
    };
    if (program.is_exact()) {
      return visit_dtype(program.dtype(), [&](auto scalar) {
        using S = decltype(scalar);
        return program.run<S>(buffer_, row, count, options_.threads, [&](const Tile<S>& tile) {
          for (Index i = 0; i < tile.rows; ++i) {
            const std::span<std::byte> to = place(tile.row + i, tile.col, tile.cols);
            std::memcpy(to.data(), tile.values + i * tile.cols, to.size());
          }
        });
      });
    }
    return program.run<double>(buffer_, row, count, options_.threads, [&](const Tile<double>& tile) {
      for (Index i = 0; i < tile.rows; ++i) {
        const std::span<const double> values(tile.values + i * tile.cols, static_cast<std::size_t>(tile.cols));
        const Index overflow = store_rounded(program.dtype(), values, place(tile.row + i, tile.col, tile.cols));
        if (overflow >= 0) {
          rmsfold::detail::raise<RangeError>(
              "tensor {}: entry ({}, {}) becomes {:g}, beyond the largest {}; store the model in a wider type (BF16 or F32) first", planned.name,
              tile.row + i, tile.col + overflow, values[static_cast<std::size_t>(overflow)], name_of(program.dtype()));
        }
      }
    });
  }

  void write_index(const std::vector<Shard>& shards) const {
    if (!model_.checkpoint().has_index() && shards.size() == 1) return;
    io::Json index = model_.checkpoint().has_index() ? model_.checkpoint().index() : io::Json::object();
    if (!index.contains("metadata") || !index["metadata"].is_object()) index["metadata"] = io::Json::object();
    std::uint64_t elements = 0;
    io::Json map = io::Json::object();
    for (const Shard& shard : shards) {
      for (const io::TensorInfo& tensor : shard.tensors) {
        map[tensor.name] = shard.name;
        elements += element_count(tensor.shape);
      }
    }
    index["metadata"]["total_size"] = total_;
    if (index["metadata"].contains("total_parameters")) index["metadata"]["total_parameters"] = elements;
    index["weight_map"] = std::move(map);
    io::write_text_file(out_.path() / io::Checkpoint::index_name, index.dump(2) + "\n");
  }

  /// The input's bytes when nothing in it changes.
  void write_config() const {
    const std::filesystem::path from = model_.checkpoint().directory() / io::Checkpoint::config_name;
    const std::filesystem::path to = out_.path() / io::Checkpoint::config_name;
    if (plan_.output_is_tied == model_.graph().tied) {
      io::copy_file(from, to);
      return;
    }
    io::Json config = model_.config().json();
    config[std::string(model_.graph().family->skeleton->tie.flag)] = plan_.output_is_tied;
    io::write_text_file(to, config.dump(2) + "\n");
  }

  /// Matrices that no seed makes again, beside the manifest, so that another machine has the same bits.
  void write_rotation() const {
    if (!stores_matrix(plan_.step, plan_.basis)) return;
    const auto undo = [&](const Matrix<double>& q) { return plan_.step.inverse ? Matrix<double>(q.transpose()) : q; };
    const Orthogonal<double>* dense = plan_.basis.stream->as_dense();
    const Matrix<double> stream = undo(dense != nullptr ? dense->matrix() : matrix_of<double>(*plan_.basis.stream));
    std::vector<double> heads;
    for (Index layer = 0; layer < model_.graph().size.layers && !plan_.basis.heads.empty(); ++layer) {
      for (const Rotation& block : plan_.basis.heads.at(at_layer(values_space, layer)).blocks()) {
        if (block.as_dense() == nullptr) continue;
        const Matrix<double> matrix = undo(block.as_dense()->matrix());
        heads.insert(heads.end(), matrix.data(), matrix.data() + matrix.size());
      }
    }
    const auto info = [](const char* name, Shape shape) {
      io::TensorInfo tensor;
      tensor.name = name;
      tensor.dtype = std::string(name_of(Dtype::f64));
      tensor.shape = std::move(shape);
      return tensor;
    };
    const std::uint64_t n = static_cast<std::uint64_t>(stream.rows());
    const std::uint64_t head_dim = static_cast<std::uint64_t>(model_.graph().size.head_dim);
    std::vector<io::TensorInfo> tensors{info("rotation", {n, n})};
    if (!heads.empty()) tensors.push_back(info("heads", {heads.size() / (head_dim * head_dim), head_dim, head_dim}));
    io::SafetensorsWriter writer(out_.path() / rotation_file_name, tensors);
    writer.write(std::size_t{0}, 0, std::as_bytes(std::span(stream.data(), static_cast<std::size_t>(stream.size()))));
    if (!heads.empty()) writer.write(std::size_t{1}, 0, std::as_bytes(std::span(heads)));
    writer.finish(options_.fsync);
  }

  const Model& model_;
  const Plan& plan_;
  const RunOptions& options_;
  io::OutputDirectory out_;
  std::vector<io::Json> earlier_;
  std::unordered_map<std::string, std::size_t> plan_index_;
  std::map<std::string, TensorHashes> hashes_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> result_;
  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;
  RunSummary summary_;
};

}  // namespace detail

/// Writes the model that a plan describes to `out`, a new directory: same tensor names, shapes, dtypes, shards, order and metadata, other files carried over.
///
/// Everything is written to `OUT.rmsfold-partial` and renamed at the end; when anything goes wrong, that is removed and `out` is untouched. The input is never written.
/// @throws RangeError when a result overflows its stored type; RefusedError; IoError; FormatError; Interrupted, from `options.progress`.
/// @par Cost  one read and one write of the model; memory for the largest tensor that is multiplied down its columns.
inline RunSummary transform(const Model& model, const Plan& plan, const std::filesystem::path& out, const RunOptions& options = {}) {
  return detail::Transformation(model, plan, out, options).run();
}

}  // namespace rmsfold::model
