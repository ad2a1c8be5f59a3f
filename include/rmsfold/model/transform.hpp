// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Carrying out a plan: a new checkpoint directory, tensor by tensor, complete or not there at all.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
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

/// Lets pieces of a tensor do something in their order, whichever worker has them.
class Turns {
 public:
  /// Thrown out of a wait that cannot end, since an earlier piece failed. Its job comes after the one that failed, so it is never what a user sees.
  struct Abandoned {};

  /// Calls `body` when every earlier piece has done so. @param job  number of this piece among all jobs.
  template <class Body>
  void take(Index& next, Index turn, Index job, const Body& body) {
    {
      std::unique_lock lock(guard_);
      changed_.wait(lock, [&] { return next == turn || failed_ < job; });
      if (next != turn) throw Abandoned{};
    }
    body();
    const std::lock_guard lock(guard_);
    ++next;
    changed_.notify_all();
  }

  /// Says that a job will not take its turn.
  void fail(Index job) {
    const std::lock_guard lock(guard_);
    failed_ = (std::min)(failed_, job);
    changed_.notify_all();
  }

 private:
  std::mutex guard_;
  std::condition_variable changed_;
  Index failed_ = (std::numeric_limits<Index>::max)();
};

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
    lay_out();
    const Index jobs = tensors_.empty() ? 0 : tensors_.back().first_job + tensors_.back().jobs;
    parallel_for(jobs, options_.threads, [] { return Workspace(); }, [&](Workspace& workspace, Index job) {
      try {
        do_job(job, workspace);
      } catch (...) {
        turns_.fail(job);
        throw;
      }
    });
    for (Shard& shard : shards_) {  // those without a tensor
      if (shard.remaining == 0 && shard.tensors == 0) open(shard);
    }
    std::map<std::string, TensorHashes> hashes;
    for (Tensor& tensor : tensors_) {
      hashes[tensor.name] = std::move(tensor.hashes);
      const bool is_copy = tensor.planned == nullptr || tensor.planned->action == TensorPlan::Action::copy;
      ++(is_copy ? summary_.copied : tensor.planned->action == TensorPlan::Action::neutralise ? summary_.neutralised : summary_.transformed);
      if (tensor.non_finite > 0) {
        summary_.notes.push_back(fmt::format("tensor {}: {} entries are infinite or NaN, in the input and so in the output", tensor.name, tensor.non_finite.load()));
      }
    }
    write_index();
    write_config();
    write_rotation();
    io::write_text_file(out_.path() / io::Checkpoint::manifest_name, make_manifest(model_, plan_, earlier_, hashes).dump(1) + "\n");
    for (const std::string& name : model_.checkpoint().other_files()) {
      if (name != rotation_file_name) io::copy_file(model_.checkpoint().directory() / name, out_.path() / name);
    }
    report(0);
    out_.commit(options_.fsync);
    summary_.bytes = total_;
    return std::move(summary_);
  }

 private:
  /// A file of the output.
  struct Shard {
    std::string name;
    std::vector<io::TensorInfo> layout;
    std::optional<io::Metadata> metadata;
    std::size_t tensors = 0;
    std::optional<io::SafetensorsWriter> writer;  // while some of its tensors are unfinished
    std::size_t remaining = 0;                    // of them
  };

  /// A tensor of the output, and how far it is.
  struct Tensor {
    std::string name;
    std::string source;
    const TensorPlan* planned = nullptr;  // none: nobody plans it, it is copied
    std::size_t shard = 0;
    std::size_t index = 0;  // in the shard's layout
    std::uint64_t bytes = 0;
    Index first_job = 0;
    Index jobs = 0;

    std::optional<TensorProgram> program;  // while it is computed
    std::vector<Piece> pieces;
    Index remaining = 0;
    Index before_turn = 0;
    Index after_turn = 0;
    io::Xxh3 before;
    io::Xxh3 after;
    std::atomic<std::uint64_t> non_finite = 0;
    TensorHashes hashes;
  };

  [[nodiscard]] const TensorPlan* plan_of(const std::string& tensor) const {
    const auto found = plan_index_.find(tensor);
    return found == plan_index_.end() ? nullptr : &plan_.tensors[found->second];
  }

  [[nodiscard]] static bool is_multiplied(const Tensor& tensor) {
    return tensor.planned != nullptr && tensor.planned->action == TensorPlan::Action::transform;
  }

  void report(std::uint64_t bytes) {
    const std::lock_guard lock(progress_guard_);
    done_ += bytes;
    if (options_.progress) options_.progress(done_, total_);
  }

  /// The input's shards, with the head right after the embedding when the output stores one that the input does not, and without a stale one; and the jobs, in the
  /// order of the bytes.
  void lay_out() {
    for (const io::Shard& from : model_.checkpoint().shards()) {
      Shard& shard = shards_.emplace_back();
      shard.name = from.name;
      if (from.file.has_metadata()) shard.metadata = from.file.metadata();
      for (const io::TensorInfo* tensor : from.tensors) {
        if (tensor->name == model_.head_tensor() && !plan_.head_is_written) continue;
        shard.layout.push_back(*tensor);
        if (tensor->name == model_.embedding_tensor() && plan_.head_is_written && !model_.head_is_stored()) {
          io::TensorInfo head = *tensor;
          head.name = model_.head_tensor();
          shard.layout.push_back(std::move(head));  // the same offsets: a stable sort by them keeps it behind the embedding
        }
      }
      shard.tensors = shard.remaining = shard.layout.size();
      for (const std::size_t index : io::data_order(shard.layout)) add_tensor(shards_.size() - 1, index);
    }
  }

  void add_tensor(std::size_t shard, std::size_t index) {
    const io::TensorInfo& info = shards_[shard].layout[index];
    const Index first_job = tensors_.empty() ? 0 : tensors_.back().first_job + tensors_.back().jobs;
    Tensor& tensor = tensors_.emplace_back();
    tensor.name = info.name;
    tensor.planned = plan_of(info.name);
    tensor.source = tensor.planned != nullptr ? tensor.planned->source : info.name;
    tensor.shard = shard;
    tensor.index = index;
    tensor.bytes = info.bytes();
    tensor.first_job = first_job;
    const std::size_t pieces = is_multiplied(tensor) ? TensorProgram(model_, plan_, *tensor.planned).pieces(options_.threads).size()
                                                     : static_cast<std::size_t>((info.bytes() + TensorProgram::piece_bytes - 1) / TensorProgram::piece_bytes);
    tensor.jobs = tensor.remaining = static_cast<Index>((std::max)(std::size_t{1}, pieces));
    total_ += info.bytes();
  }

  void do_job(Index job, Workspace& workspace) {
    const auto behind = std::upper_bound(tensors_.begin(), tensors_.end(), job, [](Index j, const Tensor& t) { return j < t.first_job; });
    Tensor& tensor = *(behind - 1);
    const Index number = job - tensor.first_job;
    begin(tensor);
    if (is_multiplied(tensor)) {
      multiply(tensor, number, job, workspace);
    } else if (tensor.planned != nullptr && tensor.planned->action == TensorPlan::Action::neutralise) {
      neutralise(tensor);
    } else {
      copy(tensor, number, job, workspace);
    }
    end(tensor, workspace);
  }

  /// Opens what the tensor needs, once.
  void begin(Tensor& tensor) {
    const std::lock_guard lock(state_guard_);
    open(shards_[tensor.shard]);
    if (is_multiplied(tensor) && !tensor.program) {
      tensor.program.emplace(model_, plan_, *tensor.planned);
      tensor.pieces = tensor.program->pieces(options_.threads);
    }
  }

  void open(Shard& shard) {
    if (shard.writer) return;
    shard.writer.emplace(out_.path() / shard.name, shard.layout, shard.metadata, io::data_order(shard.layout));
    if (shard.tensors == 0) shard.writer->finish(options_.fsync);
  }

  /// Lets go of what the tensor needed when its last piece is done, and of the shard with its last tensor.
  void end(Tensor& tensor, Workspace& workspace) {
    {
      const std::lock_guard lock(state_guard_);
      if (--tensor.remaining > 0) return;
    }
    finish_hashes(tensor, workspace);
    tensor.program.reset();
    tensor.pieces = {};
    Shard& shard = shards_[tensor.shard];
    {
      const std::lock_guard lock(state_guard_);
      if (--shard.remaining > 0) return;
    }
    shard.writer->finish(options_.fsync);
    shard.writer.reset();
    shard.layout.shrink_to_fit();
  }

  void write(Tensor& tensor, std::uint64_t offset, std::span<const std::byte> bytes) {
    io::SafetensorsWriter& writer = *shards_[tensor.shard].writer;
    writer.write(tensor.index, offset, bytes);
    if (options_.fsync) writer.start_writeback(tensor.index, offset, bytes.size());
  }

  void copy(Tensor& tensor, Index number, Index job, Workspace& workspace) {
    const std::uint64_t at = static_cast<std::uint64_t>(number) * TensorProgram::piece_bytes;
    const std::span<std::byte> raw = buffer(workspace, static_cast<std::size_t>((std::min<std::uint64_t>)(TensorProgram::piece_bytes, tensor.bytes - at)));
    model_.checkpoint().read(tensor.source, at, raw);
    turns_.take(tensor.before_turn, number, job, [&] { tensor.before.update(raw); });
    write(tensor, at, raw);
    report(raw.size());
  }

  void neutralise(Tensor& tensor) {
    const Dtype dtype = model_.dtype(tensor.name);
    std::vector<std::byte> bytes = model_.checkpoint().read(tensor.source);
    tensor.before.update(bytes);
    const std::vector<double> ones(bytes.size() / size_of(dtype), 1.0);
    static_cast<void>(store_rounded(dtype, ones, bytes));
    tensor.after.update(bytes);
    write(tensor, 0, bytes);
    report(bytes.size());
  }

  void multiply(Tensor& tensor, Index number, Index job, Workspace& workspace) {
    const TensorProgram& program = *tensor.program;
    const Piece& piece = tensor.pieces[static_cast<std::size_t>(number)];
    const std::span<std::byte> raw = buffer(workspace, program.bytes_of(piece));
    program.for_each_run(piece, [&](std::uint64_t offset, std::size_t at, std::size_t length) {
      model_.checkpoint().read(tensor.source, offset, raw.subspan(at, length));
    });
    const bool in_order = program.is_contiguous(piece);
    if (in_order) turns_.take(tensor.before_turn, number, job, [&] { tensor.before.update(raw); });
    tensor.non_finite += compute(tensor, piece, raw, workspace);
    if (in_order) turns_.take(tensor.after_turn, number, job, [&] { tensor.after.update(raw); });
    program.for_each_run(piece, [&](std::uint64_t offset, std::size_t at, std::size_t length) { write(tensor, offset, raw.subspan(at, length)); });
    report(raw.size());
  }

  /// Pieces of columns are not in the order of the bytes: the tensor is read again, from the file cache.
  void finish_hashes(Tensor& tensor, Workspace& workspace) {
    if (is_multiplied(tensor) && !tensor.pieces.empty() && !tensor.program->is_contiguous(tensor.pieces.front())) {
      const io::File written = io::File::open(out_.path() / shards_[tensor.shard].name);
      for (std::uint64_t at = 0; at < tensor.bytes; at += TensorProgram::piece_bytes) {
        const std::span<std::byte> raw = buffer(workspace, static_cast<std::size_t>((std::min<std::uint64_t>)(TensorProgram::piece_bytes, tensor.bytes - at)));
        model_.checkpoint().read(tensor.source, at, raw);
        tensor.before.update(raw);
        written.read_exact(shards_[tensor.shard].writer->place_of(tensor.index) + at, raw);
        tensor.after.update(raw);
      }
    }
    tensor.hashes.before = tensor.before.hex();
    const bool is_copy = tensor.planned == nullptr || tensor.planned->action == TensorPlan::Action::copy;
    tensor.hashes.after = is_copy ? tensor.hashes.before : tensor.after.hex();
  }

  static std::span<std::byte> buffer(Workspace& workspace, std::size_t size) {
    if (workspace.raw.size() < size) workspace.raw.resize(size);
    return std::span(workspace.raw).first(size);
  }

  std::uint64_t compute(const Tensor& tensor, const Piece& piece, std::span<std::byte> raw, Workspace& workspace) const {
    const TensorProgram& program = *tensor.program;
    const std::size_t element = size_of(program.dtype());
    const auto place = [&](Index row, Index col, Index cols) {
      const std::size_t at = static_cast<std::size_t>((row - piece.row) * piece.cols + (col - piece.col)) * element;
      return raw.subspan(at, static_cast<std::size_t>(cols) * element);
    };
    if (program.is_exact()) {
      return visit_dtype(program.dtype(), [&](auto scalar) {
        using S = decltype(scalar);
        return program.run<S>(raw, piece, workspace, [&](const Tile<S>& tile) {
          for (Index i = 0; i < tile.rows; ++i) {
            const std::span<std::byte> to = place(tile.row + i, tile.col, tile.cols);
            std::memcpy(to.data(), tile.values + i * tile.cols, to.size());
          }
        });
      });
    }
    return program.run<double>(raw, piece, workspace, [&](const Tile<double>& tile) {
      for (Index i = 0; i < tile.rows; ++i) {
        const std::span<const double> values(tile.values + i * tile.cols, static_cast<std::size_t>(tile.cols));
        const Index overflow = store_rounded(program.dtype(), values, place(tile.row + i, tile.col, tile.cols));
        if (overflow >= 0) {
          rmsfold::detail::raise<RangeError>(
              "tensor {}: entry ({}, {}) becomes {:g}, beyond the largest {}; store the model in a wider type (BF16 or F32) first", tensor.name,
              tile.row + i, tile.col + overflow, values[static_cast<std::size_t>(overflow)], name_of(program.dtype()));
        }
      }
    });
  }

  void write_index() const {
    if (!model_.checkpoint().has_index() && shards_.size() == 1) return;
    io::Json index = model_.checkpoint().has_index() ? model_.checkpoint().index() : io::Json::object();
    if (!index.contains("metadata") || !index["metadata"].is_object()) index["metadata"] = io::Json::object();
    std::uint64_t elements = 0;
    io::Json map = io::Json::object();
    for (const Shard& shard : shards_) {
      for (const io::TensorInfo& tensor : shard.layout) {
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

  /// Dense matrices beside the manifest, so that another machine has the same bits.
  void write_rotation() const {
    const Orthogonal<double>* dense = plan_.basis.stream ? plan_.basis.stream->as_dense() : nullptr;
    if (dense == nullptr) return;
    const auto undo = [&](const Matrix<double>& q) { return plan_.step.inverse ? Matrix<double>(q.transpose()) : q; };
    const Matrix<double> stream = undo(dense->matrix());
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
    const std::uint64_t n = static_cast<std::uint64_t>(dense->dim());
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
  std::deque<Shard> shards_;
  std::deque<Tensor> tensors_;  // in the order of their bytes
  Turns turns_;
  std::mutex state_guard_;
  std::mutex progress_guard_;
  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;
  RunSummary summary_;
};

}  // namespace detail

/// Writes the model that a plan describes to `out`, a new directory: same tensor names, shapes, dtypes, shards, order and metadata, other files carried over.
///
/// Everything is written to `OUT.rmsfold-partial` and renamed at the end; when anything goes wrong, that is removed and `out` is untouched. The input is never written.
/// @throws RangeError when a result overflows its stored type; RefusedError; IoError; FormatError; Interrupted, from `options.progress`.
/// @par Cost  one read and one write of the model; `working_memory`, whatever the model's size and the tensors'.
inline RunSummary transform(const Model& model, const Plan& plan, const std::filesystem::path& out, const RunOptions& options = {}) {
  return detail::Transformation(model, plan, out, options).run();
}

}  // namespace rmsfold::model
