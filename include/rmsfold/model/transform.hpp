// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Carrying out a plan: a new checkpoint directory, tensor by tensor, complete or not there at all; by one process, or a part of it by each of several.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <rmsfold/io/hash.hpp>
#include <rmsfold/io/output_directory.hpp>
#include <rmsfold/model/manifest.hpp>
#include <rmsfold/model/shards.hpp>
#include <rmsfold/model/tensor_program.hpp>

namespace rmsfold::model {

/// Called as work gets done, with units done and units in all (bytes, or multiply-adds); it may throw `Interrupted`.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// How to run.
struct RunOptions {
  unsigned threads = 0;  ///< see `thread_count`; the bytes do not depend on it
  bool fsync = true;     ///< wait until the disk has everything before the output appears
  bool force = false;    ///< replace an existing output
  bool again = false;    ///< rotate a model that is rotated already
  /// Go on with what an interrupted run left, and leave what is done when this one is interrupted. A part always does.
  bool resume = false;
  std::optional<Part> part;  ///< write only the shards of one part; `finish` makes the output of them
  Progress progress;         ///< may be empty
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
  Transformation(const Model& model, const Plan& plan, const RunOptions& options) : model_(model), plan_(plan), options_(options) {
    if (const auto path = model.checkpoint().manifest_path()) earlier_ = read_manifest(*path).steps;
    const std::vector<io::Json> open = open_rotations(earlier_);
    if (plan.step.rotation != RotationKind::none && !open.empty() && !options.again && !undoes(to_json(plan.step, plan.basis), open.back())) {
      rmsfold::detail::raise<RefusedError>(
          "{} was already rotated, as its {} says, and this step does not undo that; --again rotates it once more, --recipe {} --inverse undoes it",
          model.checkpoint().directory().string(), io::Checkpoint::manifest_name, (model.checkpoint().directory() / io::Checkpoint::manifest_name).string());
    }
    if (options.part && (options.part->number < 1 || options.part->number > options.part->of)) {
      rmsfold::detail::raise<RefusedError>("part {} of {}: parts are counted from 1", options.part->number, options.part->of);
    }
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) plan_index_.emplace(plan.tensors[i].name, i);
    lay_out();
    job_ = make_job();
  }

  /// A whole run is: every part, then the end that `finish` makes.
  RunSummary run(const std::filesystem::path& out) {
    io::OutputOptions how;
    how.force = options_.force;
    how.shared = options_.part.has_value();
    how.stays = options_.resume;
    how.keep = [this](const std::filesystem::path& partial) { return goes_on_with(partial); };
    how.set_up = [this](const std::filesystem::path& partial) { set_up(partial); };
    out_.emplace(out, model_.checkpoint().directory(), how);
    job_.manifest = nullptr;  // it lies in the partial directory now
    io::detail::LockFile mine;
    if (options_.part) take_part(mine);
    RunSummary summary;
    summary.notes = out_->notes();
    choose_shards(summary);
    out_->require_space(total_);
    write_shards();
    if (options_.part) {
      summarise(summary);
    } else {
      RunSummary all = complete(*out_, options_.fsync);
      all.shards_kept = summary.shards_kept;
      all.notes.insert(all.notes.begin(), summary.notes.begin(), summary.notes.end());
      summary = std::move(all);
    }
    return summary;
  }

 private:
  /// A file of the output.
  struct Shard {
    std::string name;
    std::vector<io::TensorInfo> layout;
    std::optional<io::Metadata> metadata;
    std::uint64_t bytes = 0;       // of its tensors
    std::uint64_t like = 0;        // where the data of the input's file begin
    std::size_t first_tensor = 0;  // when this run writes it
    std::optional<io::SafetensorsWriter> writer;  // while some of its tensors are unfinished
    std::size_t remaining = 0;                    // of them
  };

  /// What a tensor needs while it is worked on.
  struct Work {
    std::optional<TensorProgram> program;  // when it is multiplied
    std::vector<Piece> pieces;
    Index before_turn = 0;
    Index after_turn = 0;
    io::Xxh3 before;
    io::Xxh3 after;
    std::atomic<std::uint64_t> non_finite = 0;
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
    Index remaining = 0;
    std::unique_ptr<Work> work;
    std::uint64_t non_finite = 0;
    TensorHashes hashes;

    [[nodiscard]] TensorPlan::Action action() const { return planned == nullptr ? TensorPlan::Action::copy : planned->action; }
  };

  [[nodiscard]] const TensorPlan* plan_of(const std::string& tensor) const {
    const auto found = plan_index_.find(tensor);
    return found == plan_index_.end() ? nullptr : &plan_.tensors[found->second];
  }

  [[nodiscard]] bool is_multiplied(const Tensor& tensor) const {
    return tensor.action() == TensorPlan::Action::transform || (tensor.planned != nullptr && model_.is_quantised(tensor.name));
  }

  void report(std::uint64_t bytes) {
    const std::lock_guard lock(progress_guard_);
    done_ += bytes;
    if (options_.progress) options_.progress(done_, total_);
  }

  /// The input's shards, with the head right after the embedding when the output stores one that the input does not, and without a stale one.
  void lay_out() {
    for (const io::Shard& from : model_.checkpoint().shards()) {
      Shard& shard = shards_.emplace_back();
      shard.name = from.name;
      shard.like = from.file.data_begin();
      if (from.file.has_metadata()) shard.metadata = from.file.metadata();
      for (const io::TensorInfo* tensor : from.tensors) {
        if (model_.is_dropped(tensor->name)) continue;
        if (model_.has_head() && tensor->name == model_.head_tensor() && !plan_.head_is_written) continue;
        shard.layout.push_back(*tensor);
        if (const Index param = model_.param_index(tensor->name); param >= 0 && model_.is_quantised(tensor->name)) {
          io::TensorInfo& written = shard.layout.back();
          written.name = model_.graph().params[static_cast<std::size_t>(param)].name;
          written.shape = model_.shape(written.name);
          written.dtype = std::string(name_of(model_.dtype(written.name)));
          written.end = tensor->begin + element_count(written.shape) * size_of(model_.dtype(written.name));
        }
        if (tensor->name == model_.embedding_tensor() && plan_.head_is_written && !model_.head_is_stored()) {
          io::TensorInfo head = *tensor;
          head.name = model_.head_tensor();
          shard.layout.push_back(std::move(head));  // the same offsets: a stable sort by them keeps it behind the embedding
        }
      }
      for (const io::TensorInfo& tensor : shard.layout) shard.bytes += tensor.bytes();
    }
  }

  [[nodiscard]] ShardJob make_job() const {
    ShardJob job;
    job.parts = options_.part ? options_.part->of : 0;
    std::error_code error;
    job.model = std::filesystem::absolute(model_.checkpoint().directory(), error).string();
    std::set<std::string> stored;
    std::vector<std::uint64_t> bytes;
    for (const Shard& shard : shards_) {
      bytes.push_back(shard.bytes);
      job.shards.push_back(shard.name);
      for (const io::TensorInfo& tensor : shard.layout) stored.insert(tensor.name);
    }
    job.part_of = assign_shards(bytes, (std::max)(std::size_t{1}, job.parts));
    job.manifest = make_manifest(model_, plan_, earlier_, stored);
    job.plan = plan_hash(job);
    return job;
  }

  /// Everything that the output's bytes depend on, but the weights themselves: of them, the gains.
  [[nodiscard]] std::string plan_hash(const ShardJob& job) const {
    io::Xxh3 hash;
    const auto add = [&](const auto& numbers) { hash.update(std::as_bytes(std::span(numbers.data(), static_cast<std::size_t>(numbers.size())))); };
    const auto add_rotation = [&](const Rotation& q) {
      if (const Orthogonal<double>* dense = q.as_dense()) return add(dense->matrix());
      RowVector<double> image(q.dim());  // of numbers that differ: it determines a signed permutation
      for (Index j = 0; j < image.size(); ++j) image[j] = static_cast<double>(j + 1);
      q.apply(image.data(), 1, 1);
      add(image);
    };
    hash.update(io::bytes_of(job.manifest.dump()));
    for (const Shard& shard : shards_) {
      hash.update(io::bytes_of(shard.name));
      hash.update(io::bytes_of(io::to_text({shard.layout, shard.metadata})));
    }
    for (const Site& site : plan_.sites) {
      add(site.gain);
      add(site.bias);
    }
    if (plan_.basis.stream) add_rotation(*plan_.basis.stream);
    for (const auto& [space, heads] : plan_.basis.heads) {
      for (const Rotation& block : heads.blocks()) add_rotation(block);
    }
    return hash.hex();
  }

  /// Whether to go on with a partial directory that was found, instead of beginning anew.
  [[nodiscard]] bool goes_on_with(const std::filesystem::path& partial) const {
    const std::optional<ShardJob> found = read_job(partial);
    const bool is_whole_run = !options_.part;
    if (!found) {
      std::error_code error;
      const bool is_complete = std::filesystem::exists(partial / io::Checkpoint::manifest_name, error);
      if (is_complete && !options_.force && (options_.part || options_.resume)) {
        rmsfold::detail::raise<RefusedError>("{} is complete: 'rmsfold finish' gives it its name, --force begins anew", io::printable(partial));
      }
      return false;
    }
    const bool is_same = found->plan == job_.plan;
    if (is_whole_run && options_.resume) {
      if (is_same) return true;
      if (!options_.force) {
        rmsfold::detail::raise<RefusedError>("{} was begun with other options, another model or another version of rmsfold; --force begins anew",
                                             io::printable(partial));
      }
      return false;
    }
    if (!is_whole_run && is_same && found->parts == job_.parts) return true;
    if (found->parts > 0 && !options_.force) {
      rmsfold::detail::raise<RefusedError>(
          "{} holds the work of {} parts{}: 'rmsfold finish' makes the output of it when all of them are done, {}--force begins anew", io::printable(partial),
          found->parts, is_same ? "" : " with other options, of another model or by another version of rmsfold",
          is_same ? is_whole_run ? "--resume goes on with it alone, " : fmt::format("--part i/{} goes on with it, ", found->parts) : "");
    }
    return false;
  }

  /// Everything but the shards and the manifest; the job comes last, which says that the rest is there.
  void set_up(const std::filesystem::path& partial) const {
    std::filesystem::create_directory(partial / job_folder);
    write_index(partial);
    write_config(partial);
    write_rotation(partial);
    for (const std::string& name : model_.checkpoint().other_files()) {
      if (name != rotation_file_name) io::copy_file(model_.checkpoint().directory() / name, partial / name);
    }
    write_job(partial, job_);
  }

  /// Keeps a second process away from the same part.
  void take_part(io::detail::LockFile& lock) const {
    const std::string name = fmt::format("part-{}-of-{}.lock", options_.part->number, options_.part->of);
    const std::string refusal = fmt::format("another rmsfold is writing part {} of {}: wait for it to end", options_.part->number, options_.part->of);
    while (!lock.acquire(out_->path() / job_folder / name, refusal)) {
    }
  }

  /// Decides which shards this run writes: those of its part, but those that an earlier run has finished.
  void choose_shards(RunSummary& summary) {
    std::vector<std::size_t> mine(shards_.size());
    std::iota(mine.begin(), mine.end(), std::size_t{0});
    if (options_.part) {
      const auto is_others = [&](std::size_t s) { return job_.part_of[s] != options_.part->number; };
      mine.erase(std::remove_if(mine.begin(), mine.end(), is_others), mine.end());
    }
    std::vector<char> is_done(mine.size(), 0);
    if (out_->was_kept()) {
      parallel_for(static_cast<Index>(mine.size()), options_.threads, [] { return Workspace(); }, [&](Workspace& workspace, Index i) {
        is_done[static_cast<std::size_t>(i)] = is_finished(shards_[mine[static_cast<std::size_t>(i)]], workspace) ? 1 : 0;
      });
    }
    summary.shards = mine.size();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (is_done[i] != 0) {
        ++summary.shards_kept;
        continue;
      }
      Shard& shard = shards_[mine[i]];
      discard(shard);
      shard.first_tensor = tensors_.size();
      shard.remaining = shard.layout.size();
      for (const std::size_t index : io::data_order(shard.layout)) add_tensor(mine[i], index);
      total_ += shard.bytes;
      todo_.push_back(mine[i]);
    }
    if (summary.shards_kept > 0 || (options_.resume && out_->was_kept() && !mine.empty())) {
      summary.notes.push_back(fmt::format("{} of {} shards were there already, whole, and are kept", summary.shards_kept, summary.shards));
    }
  }

  /// Removes an unfinished shard, and the manifest, which would say that all are finished.
  void discard(const Shard& shard) const {
    std::filesystem::remove(out_->path() / io::Checkpoint::manifest_name);
    std::filesystem::remove(record_path(out_->path(), shard.name));
    std::filesystem::remove(out_->path() / shard.name);
  }

  /// Size of a shard's input and when it was changed last.
  [[nodiscard]] std::pair<std::uint64_t, std::int64_t> source_state(const Shard& shard) const {
    const std::filesystem::path path = model_.checkpoint().directory() / shard.name;
    return {std::filesystem::file_size(path), static_cast<std::int64_t>(std::filesystem::last_write_time(path).time_since_epoch().count())};
  }

  [[nodiscard]] static std::string header_hash(const std::vector<io::TensorInfo>& tensors, const std::optional<io::Metadata>& metadata) {
    return io::xxh3_hex(io::bytes_of(io::to_text({tensors, metadata})));
  }

  /// Whether an earlier run has written a shard, by the same plan and from the same input, and every byte is still what it wrote.
  [[nodiscard]] bool is_finished(const Shard& shard, Workspace& workspace) {
    try {
      const std::optional<ShardRecord> record = read_record(out_->path(), shard.name);
      if (!record || record->plan != job_.plan || record->tensors.size() != shard.layout.size()) return false;
      if (std::pair(record->source_bytes, record->source_modified) != source_state(shard)) return false;
      const io::SafetensorsFile file(out_->path() / shard.name);
      if (header_hash(file.tensors(), file.header().metadata) != record->header) return false;
      for (std::size_t i = 0; i < record->tensors.size(); ++i) {
        const io::TensorInfo* tensor = file.find(record->tensors[i]);
        if (tensor == nullptr) return false;
        io::Xxh3 hash;
        for (std::uint64_t at = 0; at < tensor->bytes(); at += TensorProgram::piece_bytes) {
          report(0);
          const std::span<std::byte> raw = workspace.raw.first(static_cast<std::size_t>((std::min<std::uint64_t>)(TensorProgram::piece_bytes, tensor->bytes() - at)));
          file.read(*tensor, raw, at);
          hash.update(raw);
        }
        if (hash.hex() != record->hashes[i].after) return false;
      }
      return true;
    } catch (const FormatError&) {
      return false;
    } catch (const IoError&) {
      return false;
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
    const std::size_t pieces = is_multiplied(tensor) ? TensorProgram(model_, plan_, *tensor.planned).pieces(options_.threads, 1).size()
                                                     : static_cast<std::size_t>((info.bytes() + TensorProgram::piece_bytes - 1) / TensorProgram::piece_bytes);
    const bool is_cut = tensor.action() != TensorPlan::Action::neutralise;
    tensor.jobs = tensor.remaining = is_cut ? static_cast<Index>((std::max)(std::size_t{1}, pieces)) : 1;
  }

  void write_shards() {
    report(0);
    const Index jobs = tensors_.empty() ? 0 : tensors_.back().first_job + tensors_.back().jobs;
    try {
      parallel_for(jobs, options_.threads, [] { return Workspace(); }, [&](Workspace& workspace, Index job) {
        try {
          do_job(job, workspace);
        } catch (...) {
          turns_.fail(job);
          throw;
        }
      });
      for (const std::size_t s : todo_) {
        if (!shards_[s].layout.empty()) continue;
        open(shards_[s]);
        close(shards_[s]);
      }
    } catch (...) {
      std::error_code ignored;  // the first failure is the one to tell
      for (const std::size_t s : todo_) {
        if (shards_[s].writer) std::filesystem::remove(out_->path() / shards_[s].name, ignored);
      }
      throw;
    }
    report(0);
  }

  /// What this run wrote, in a summary of a part.
  void summarise(RunSummary& summary) const {
    for (const std::size_t s : todo_) add_up(shards_[s], summary);
  }

  void add_up(const Shard& shard, RunSummary& summary) const {
    summary.bytes += shard.bytes;
    for (std::size_t i = 0; i < shard.layout.size(); ++i) {
      const Tensor& tensor = tensors_[shard.first_tensor + i];
      const TensorPlan::Action action = tensor.action();
      ++(action == TensorPlan::Action::copy ? summary.copied : action == TensorPlan::Action::neutralise ? summary.neutralised : summary.transformed);
      if (tensor.non_finite > 0) {
        summary.notes.push_back(fmt::format("tensor {}: {} entries are infinite or NaN, in the input and so in the output", tensor.name, tensor.non_finite));
      }
    }
  }

  void do_job(Index job, Workspace& workspace) {
    const auto behind = std::upper_bound(tensors_.begin(), tensors_.end(), job, [](Index j, const Tensor& t) { return j < t.first_job; });
    Tensor& tensor = *(behind - 1);
    const Index number = job - tensor.first_job;
    begin(tensor);
    if (is_multiplied(tensor)) {
      multiply(tensor, number, job, workspace);
    } else if (tensor.action() == TensorPlan::Action::neutralise) {
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
    if (tensor.work) return;
    tensor.work = std::make_unique<Work>();
    if (is_multiplied(tensor)) {
      tensor.work->program.emplace(model_, plan_, *tensor.planned);
      tensor.work->pieces = tensor.work->program->pieces(options_.threads, 1);
    }
  }

  void open(Shard& shard) {
    if (!shard.writer) shard.writer.emplace(out_->path() / shard.name, shard.layout, shard.metadata, io::data_order(shard.layout), shard.like);
  }

  /// Lets go of what the tensor needed when its last piece is done, and of the shard with its last tensor.
  void end(Tensor& tensor, Workspace& workspace) {
    {
      const std::lock_guard lock(state_guard_);
      if (--tensor.remaining > 0) return;
    }
    finish_hashes(tensor, workspace);
    tensor.work.reset();
    Shard& shard = shards_[tensor.shard];
    {
      const std::lock_guard lock(state_guard_);
      if (--shard.remaining > 0) return;
    }
    close(shard);
  }

  /// Finishes a shard's file, then says so in a record.
  void close(Shard& shard) {
    shard.writer->finish(options_.fsync);
    ShardRecord record;
    record.plan = job_.plan;
    record.header = header_hash(shard.writer->tensors(), shard.metadata);
    record.bytes = std::filesystem::file_size(out_->path() / shard.name);
    std::tie(record.source_bytes, record.source_modified) = source_state(shard);
    add_up(shard, record.summary);
    for (std::size_t i = 0; i < shard.layout.size(); ++i) {
      Tensor& tensor = tensors_[shard.first_tensor + i];
      record.tensors.push_back(tensor.name);
      record.hashes.push_back(std::move(tensor.hashes));
    }
    write_record(out_->path(), shard.name, record);
    shard.writer.reset();
  }

  /// By and by, since a write keeps all others to its file waiting.
  void write(Tensor& tensor, std::uint64_t offset, std::span<const std::byte> bytes) {
    io::SafetensorsWriter& writer = *shards_[tensor.shard].writer;
    for (std::size_t at = 0; at < bytes.size(); at += TensorProgram::piece_bytes) {
      const std::span<const std::byte> some = bytes.subspan(at, (std::min)(TensorProgram::piece_bytes, bytes.size() - at));
      writer.write(tensor.index, offset + at, some);
      if (options_.fsync) writer.start_writeback(tensor.index, offset + at, some.size());
    }
  }

  void copy(Tensor& tensor, Index number, Index job, Workspace& workspace) {
    const std::uint64_t at = static_cast<std::uint64_t>(number) * TensorProgram::piece_bytes;
    const std::size_t size = static_cast<std::size_t>((std::min<std::uint64_t>)(TensorProgram::piece_bytes, tensor.bytes - at));
    const std::span<std::byte> raw = workspace.raw.at(model_.checkpoint().place_of(tensor.source) + at, size);
    model_.checkpoint().read(tensor.source, at, raw);
    turns_.take(tensor.work->before_turn, number, job, [&] { tensor.work->before.update(raw); });
    write(tensor, at, raw);
    report(raw.size());
  }

  void neutralise(Tensor& tensor) {
    const Dtype dtype = model_.dtype(tensor.name);
    std::vector<std::byte> bytes = model_.checkpoint().read(tensor.source);
    tensor.work->before.update(bytes);
    const std::vector<double> values(bytes.size() / size_of(dtype), tensor.planned->fill);
    static_cast<void>(store_rounded(dtype, values, bytes));
    tensor.work->after.update(bytes);
    write(tensor, 0, bytes);
    report(bytes.size());
  }

  void multiply(Tensor& tensor, Index number, Index job, Workspace& workspace) {
    Work& work = *tensor.work;
    const TensorProgram& program = *work.program;
    const Piece& piece = work.pieces[static_cast<std::size_t>(number)];
    const std::span<std::byte> raw = workspace.raw.at(model_.checkpoint().place_of(tensor.source) + program.offset_of(piece), program.raw_bytes_of(piece));
    program.read(model_, tensor.source, piece, raw);
    const bool in_order = program.is_contiguous(piece) && !program.is_quantised();
    if (in_order) turns_.take(work.before_turn, number, job, [&] { work.before.update(raw); });
    const std::span<std::byte> result = program.is_quantised() ? workspace.result.first(program.bytes_of(piece)) : raw;
    work.non_finite += compute(tensor, piece, raw, result, workspace);
    if (in_order) turns_.take(work.after_turn, number, job, [&] { work.after.update(result); });
    program.for_each_run(piece, [&](std::uint64_t offset, std::size_t at, std::size_t length) { write(tensor, offset, result.subspan(at, length)); });
    report(result.size());
  }

  /// Pieces of columns are not in the order of the bytes: the tensor is read again, from the file cache.
  void finish_hashes(Tensor& tensor, Workspace& workspace) {
    Work& work = *tensor.work;
    if (is_multiplied(tensor) && !work.pieces.empty() && (work.program->is_quantised() || !work.program->is_contiguous(work.pieces.front()))) {
      const io::File written = io::File::open(out_->path() / shards_[tensor.shard].name);
      const auto by_pieces = [&](std::uint64_t bytes, const auto& use) {
        for (std::uint64_t at = 0; at < bytes; at += TensorProgram::piece_bytes) {
          use(at, workspace.raw.at(model_.checkpoint().place_of(tensor.source) + at, static_cast<std::size_t>((std::min<std::uint64_t>)(TensorProgram::piece_bytes, bytes - at))));
        }
      };
      by_pieces(model_.checkpoint().find(tensor.source)->info->bytes(), [&](std::uint64_t at, std::span<std::byte> raw) {
        model_.checkpoint().read(tensor.source, at, raw);
        work.before.update(raw);
      });
      by_pieces(tensor.bytes, [&](std::uint64_t at, std::span<std::byte> raw) {
        written.read_exact(shards_[tensor.shard].writer->place_of(tensor.index) + at, raw);
        work.after.update(raw);
      });
    }
    tensor.non_finite = work.non_finite;
    tensor.hashes.before = work.before.hex();
    tensor.hashes.after = tensor.action() == TensorPlan::Action::copy && !is_multiplied(tensor) ? tensor.hashes.before : work.after.hex();
  }

  /// @param result  memory for the piece as it will be stored; it may be `raw`, but for codes.
  std::uint64_t compute(const Tensor& tensor, const Piece& piece, std::span<std::byte> raw, std::span<std::byte> result, Workspace& workspace) const {
    const TensorProgram& program = *tensor.work->program;
    const std::size_t element = size_of(program.dtype());
    const auto from_tile = [&](const auto& tile) {  // the bytes from its first element on
      return result.subspan(static_cast<std::size_t>((tile.row - piece.row) * piece.cols + (tile.col - piece.col)) * element);
    };
    if (program.scales_only()) {
      std::uint64_t non_finite = 0;
      if (program.scale(raw, piece, raw, non_finite)) return non_finite;
      program.read(model_, tensor.source, piece, raw);  // what follows says which entry does not fit
    }
    if (program.is_exact()) {
      return visit_dtype(program.dtype(), [&](auto scalar) {
        using S = decltype(scalar);
        return program.run<S>(raw, piece, workspace, [&](const Tile<S>& tile) {
          if (reinterpret_cast<const std::byte*>(tile.values) == from_tile(tile).data()) return;  // in place
          for (Index i = 0; i < tile.rows; ++i) {
            std::memcpy(from_tile(tile).data() + static_cast<std::size_t>(i * piece.cols) * sizeof(S), tile.values + i * tile.cols,
                        static_cast<std::size_t>(tile.cols) * sizeof(S));
          }
        });
      });
    }
    return program.run<double>(raw, piece, workspace, [&](const Tile<double>& tile) {
      const std::span<const double> values(tile.values, static_cast<std::size_t>(tile.rows * tile.cols));
      const Index overflow = store_rounded(program.dtype(), values, piece.cols, tile.cols, from_tile(tile));
      if (overflow >= 0) {
        rmsfold::detail::raise<RangeError>(
            "tensor {}: entry ({}, {}) becomes {:g}, beyond the largest {}; store the model in a wider type (BF16 or F32) first", tensor.name,
            tile.row + overflow / tile.cols, tile.col + overflow % tile.cols, values[static_cast<std::size_t>(overflow)], name_of(program.dtype()));
      }
    });
  }

  void write_index(const std::filesystem::path& partial) const {
    if (!model_.checkpoint().has_index() && shards_.size() == 1) return;
    io::Json index = model_.checkpoint().has_index() ? model_.checkpoint().index() : io::Json::object();
    if (!index.contains("metadata") || !index["metadata"].is_object()) index["metadata"] = io::Json::object();
    std::uint64_t elements = 0;
    std::uint64_t bytes = 0;
    io::Json::object_t map;  // appended to, since looking a key up is linear
    for (const Shard& shard : shards_) {
      for (const io::TensorInfo& tensor : shard.layout) {
        map.emplace_back(tensor.name, shard.name);
        elements += element_count(tensor.shape);
      }
      bytes += shard.bytes;
    }
    index["metadata"]["total_size"] = bytes;
    if (index["metadata"].contains("total_parameters")) index["metadata"]["total_parameters"] = elements;
    index["weight_map"] = std::move(map);
    io::write_text_file(partial / io::Checkpoint::index_name, index.dump(2) + "\n");
  }

  /// The input's bytes when nothing in it changes.
  void write_config(const std::filesystem::path& partial) const {
    const std::filesystem::path from = model_.checkpoint().directory() / io::Checkpoint::config_name;
    const std::filesystem::path to = partial / io::Checkpoint::config_name;
    const bool keeps_tie = !model_.has_head() || plan_.output_is_tied == model_.graph().tied;
    if (keeps_tie && model_.graph().dropped.empty() && !model_.is_dequantised()) {
      io::copy_file(from, to);
      return;
    }
    io::Json config = model_.config().json();
    if (!keeps_tie) model_.set_tie(config, plan_.output_is_tied);
    if (!model_.graph().dropped.empty()) model_.set_mtp_dropped(config);
    if (model_.is_dequantised()) config.erase("quantization_config");
    io::write_text_file(to, io::unquote_python_literals(config.dump(2) + "\n"));
  }

  /// Matrices that no seed makes again, beside the manifest, so that another machine has the same bits.
  void write_rotation(const std::filesystem::path& partial) const {
    if (!stores_matrix(plan_.step, plan_.basis)) return;
    const auto undo = [&](const Matrix<double>& q) { return plan_.step.inverse ? Matrix<double>(q.transpose()) : q; };
    const Orthogonal<double>* dense = plan_.basis.stream->as_dense();
    const Matrix<double> stream = undo(dense != nullptr ? dense->matrix() : matrix_of<double>(*plan_.basis.stream));
    std::vector<double> heads;
    for (std::size_t s = 0; s < model_.graph().values.size() && !plan_.basis.heads.empty(); ++s) {
      for (const Rotation& block : plan_.basis.heads.at(model_.graph().values[s].name).blocks()) {
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
    io::SafetensorsWriter writer(partial / rotation_file_name, tensors);
    writer.write(std::size_t{0}, 0, std::as_bytes(std::span(stream.data(), static_cast<std::size_t>(stream.size()))));
    if (!heads.empty()) writer.write(std::size_t{1}, 0, std::as_bytes(std::span(heads)));
    writer.finish(options_.fsync);
  }

  const Model& model_;
  const Plan& plan_;
  const RunOptions& options_;
  std::vector<io::Json> earlier_;
  std::unordered_map<std::string, std::size_t> plan_index_;
  std::deque<Shard> shards_;        // of the whole model
  ShardJob job_;
  std::optional<io::OutputDirectory> out_;
  std::vector<std::size_t> todo_;   // shards that this run writes
  std::deque<Tensor> tensors_;      // of them, in the order of their bytes
  Turns turns_;
  std::mutex state_guard_;
  std::mutex progress_guard_;
  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace detail

/// Writes the model that a plan describes to `out`, a new directory: same tensor names, shapes, dtypes, shards, order and metadata, other files carried over.
///
/// Everything is written to `OUT.rmsfold-partial` and renamed at the end; when anything goes wrong, that is removed and `out` is untouched. The input is never written.
/// With `options.part` only the shards of that part are written, and `finish` does the rest when all parts are done; with `options.resume` whole shards of an
/// interrupted run are kept. The bytes of the output are the same, whoever wrote which shard.
/// @throws RangeError when a result overflows its stored type; RefusedError; IoError; FormatError; Interrupted, from `options.progress`.
/// @par Cost  one read and one write of the model; `working_memory`, and the gains; a dense rotation's matrices.
inline RunSummary transform(const Model& model, const Plan& plan, const std::filesystem::path& out, const RunOptions& options = {}) {
  return detail::Transformation(model, plan, options).run(out);
}

}  // namespace rmsfold::model
