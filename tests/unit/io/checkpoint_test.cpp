// SPDX-License-Identifier: MIT
#include <rmsfold/io/checkpoint.hpp>

#include <string>
#include <type_traits>
#include <vector>

#include <sys/stat.h>

#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/temp_dir.hpp"

namespace {

using rmsfold::FormatError;
using rmsfold::io::Checkpoint;
using rmsfold::test::good_safetensors;
using rmsfold::test::has_text;
using rmsfold::test::TempDir;
using rmsfold::test::write_bytes;
using Names = std::vector<std::string>;

constexpr auto index_name = "model.safetensors.index.json";
constexpr auto first = "model-00001-of-00002.safetensors";
constexpr auto second = "model-00002-of-00002.safetensors";

/// An index that maps tensors to files, as given.
std::string index_of(const std::vector<std::pair<std::string, std::string>>& weight_map) {
  std::vector<std::string> members;
  for (const auto& [tensor, file] : weight_map) members.push_back("\"" + tensor + "\":\"" + file + "\"");
  return R"({"metadata":{"total_size":24},"weight_map":)" + rmsfold::test::object(members) + "}";
}

/// A sound directory of two shards: a and b in the first, c in the second.
void write_sharded(const TempDir& dir) {
  write_bytes(dir / "config.json", R"({"model_type":"llama"})");
  write_bytes(dir / first, good_safetensors({{"b", 1}, {"a", 2}}));
  write_bytes(dir / second, good_safetensors({{"c", 3}}));
  write_bytes(dir / index_name, index_of({{"a", first}, {"b", first}, {"c", second}}));
}

/// A sound directory of one file.
void write_single(const TempDir& dir) {
  write_bytes(dir / "config.json", R"({"model_type":"llama"})");
  write_bytes(dir / "model.safetensors", good_safetensors({{"b", 1}, {"a", 2}}));
}

}  // namespace

static_assert(!std::is_convertible_v<std::string, Checkpoint> && std::is_move_constructible_v<Checkpoint>);

TEST_CASE("checkpoint: one file", "[io]") {
  const TempDir dir;
  write_single(dir);
  Checkpoint opened(dir.path());
  const Checkpoint model = std::move(opened);
  CHECK(model.config()["model_type"] == "llama");
  REQUIRE(model.shards().size() == 1);
  CHECK(model.shards()[0].name == "model.safetensors");
  CHECK(model.tensor_names() == Names{"b", "a"});
  CHECK_FALSE(model.has_index());
  CHECK(model.index_metadata().is_null());
  CHECK(model.notes().empty());
  CHECK(model.find("none") == nullptr);
  REQUIRE(model.find("a") != nullptr);
  CHECK(model.find("a")->shard == 0);
  CHECK(model.find("a")->info->bytes() == 8);
  CHECK(model.read("a").size() == 8);
  std::vector<std::byte> middle(3);
  model.read("a", 2, middle);
  CHECK(std::equal(middle.begin(), middle.end(), model.read("a").begin() + 2));
  CHECK_THROWS_WITH(model.read("none"), has_text("no tensor 'none'"));
  CHECK_THROWS_AS(model.read("a", 6, middle), rmsfold::ShapeError);
}

TEST_CASE("checkpoint: several files by their index", "[io]") {
  const TempDir dir;
  write_sharded(dir);
  const Checkpoint model(dir.path());
  REQUIRE(model.shards().size() == 2);
  CHECK(model.shards()[1].name == second);
  CHECK(model.tensor_names() == Names{"b", "a", "c"});
  CHECK(model.find("c")->shard == 1);
  CHECK(model.index_metadata()["total_size"] == 24);
  CHECK(model.index()["weight_map"]["c"] == second);
  CHECK(model.notes().empty());
  CHECK(model.other_files().empty());
  CHECK(model.left_behind().empty());
}

TEST_CASE("checkpoint: what is no model directory", "[io]") {
  const TempDir dir;
  CHECK_THROWS_WITH(Checkpoint(dir / "none"), has_text("none: there is no such model directory"));
  CHECK_THROWS_AS(Checkpoint(dir / "none"), rmsfold::FormatError);
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text("has no config.json"));
  write_single(dir);
  CHECK_NOTHROW(Checkpoint(dir.path()));
  CHECK_THROWS_WITH(Checkpoint(dir / "model.safetensors"), has_text("is not a directory"));
  write_bytes(dir / "config.json", "[]");
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text("config.json: not a JSON object"));
  write_bytes(dir / "config.json", R"({"a":1,"a":2})");
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text("config.json") && has_text("duplicate key 'a'"));
  write_bytes(dir / "config.json", "{}");
  std::filesystem::remove(dir / "model.safetensors");
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text("has no weights"));
  REQUIRE(::mkfifo((dir / "model.safetensors").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text("has no weights"));
}

TEST_CASE("checkpoint: K11, K13 all missing files are listed", "[io]") {
  const TempDir dir;
  write_sharded(dir);
  std::filesystem::remove(dir / first);
  std::filesystem::remove(dir / second);
  std::filesystem::create_symlink("nowhere", dir / second);
  write_bytes(dir / "model.safetensors", good_safetensors({{"a", 1}}));
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text("2 of 2") && has_text(first) && has_text(second) &&
                                                has_text("stale index or incomplete download"));
  const Checkpoint by_headers(dir.path(), Checkpoint::Source::headers);
  CHECK(by_headers.tensor_names() == Names{"a"});
  CHECK_FALSE(by_headers.has_index());
}

TEST_CASE("checkpoint: K13 an empty shard", "[io]") {
  const TempDir dir;
  write_sharded(dir);
  write_bytes(dir / second, "");
  CHECK_THROWS_AS(Checkpoint(dir.path()), FormatError);
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text(second) && has_text("0 bytes"));
}

TEST_CASE("checkpoint: K12 a stray single file beside shards", "[io]") {
  const TempDir dir;
  write_sharded(dir);
  write_bytes(dir / "model.safetensors", good_safetensors({{"a", 5}, {"stray", 1}}));
  const Checkpoint model(dir.path());
  CHECK(model.shards().size() == 2);
  CHECK(model.find("stray") == nullptr);
  CHECK(model.find("a")->info->bytes() == 8);
  REQUIRE(model.notes().size() == 1);
  CHECK_THAT(model.notes()[0], has_text("model.safetensors") && has_text("ignored"));
  CHECK(model.left_behind() == Names{"model.safetensors"});
}

TEST_CASE("checkpoint: K14 a tensor that is not where the index says", "[io]") {
  const TempDir dir;
  write_sharded(dir);
  write_bytes(dir / index_name, index_of({{"a", first}, {"b", first}, {"c", second}, {"d", second}}));
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text("'d'") && has_text(second) && has_text("is not there"));
  // In another shard only: the index is wrong all the same.
  write_bytes(dir / index_name, index_of({{"a", first}, {"b", second}, {"c", second}}));
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text("'b'") && has_text(second) && has_text("is not there"));
}

TEST_CASE("checkpoint: the index decides between copies", "[io]") {
  const TempDir dir;
  write_sharded(dir);
  write_bytes(dir / second, good_safetensors({{"a", 7}, {"c", 3}}));
  const Checkpoint model(dir.path());
  CHECK(model.find("a")->shard == 0);
  CHECK(model.find("a")->info->bytes() == 8);
  CHECK(model.tensor_names() == Names{"b", "a", "c"});
  REQUIRE(model.shards()[1].tensors.size() == 1);
  CHECK(model.shards()[1].file.tensors().size() == 2);
  REQUIRE(model.notes().size() == 1);
  CHECK_THAT(model.notes()[0], has_text(second) && has_text("1 tensor stale") && has_text(": a"));
  // The other way round the other copy counts.
  write_bytes(dir / index_name, index_of({{"a", second}, {"b", first}, {"c", second}}));
  CHECK(Checkpoint(dir.path()).find("a")->info->bytes() == 28);
  // Without an index nobody can tell.
  CHECK_THROWS_WITH(Checkpoint(dir.path(), Checkpoint::Source::headers),
                    has_text("'a' is in both") && has_text(first) && has_text(second));
}

TEST_CASE("checkpoint: K15 a tensor that the index forgot is kept", "[io]") {
  const TempDir dir;
  write_sharded(dir);
  write_bytes(dir / second, good_safetensors({{"c", 3}, {"mtp.x", 1}}));
  const Checkpoint model(dir.path());
  CHECK(model.tensor_names() == Names{"b", "a", "c", "mtp.x"});
  CHECK(model.find("mtp.x")->shard == 1);
  REQUIRE(model.notes().size() == 1);
  CHECK_THAT(model.notes()[0], has_text(second) && has_text("kept 1 tensor") && has_text("mtp.x"));
  write_bytes(dir / first, good_safetensors({{"b", 1}, {"a", 2}, {"mtp.x", 1}}));
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text("'mtp.x' is in both"));
}

TEST_CASE("checkpoint: a malformed index", "[io]") {
  const TempDir dir;
  write_sharded(dir);
  const char* const bad_files[] = {"../x.safetensors",  "/etc/x.safetensors", "sub/x.safetensors",   "..", "",
                                   "pytorch_model.bin", "a\\\\b.safetensors", "a\\u0000.safetensors"};
  for (const char* const file : bad_files) {
    INFO(file);
    write_bytes(dir / index_name, index_of({{"a", first}, {"b", first}, {"c", file}}));
    CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text("'c'") && has_text("not the name of a safetensors file"));
  }
  for (const char* const text :
       {"[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})", "null", ""}) {
    INFO(text);
    write_bytes(dir / index_name, text);
    CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text(index_name));
  }
  write_bytes(dir / index_name, index_of({{"a", first}, {"a", second}, {"b", first}, {"c", second}}));
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text("duplicate key 'a'"));
  write_bytes(dir / index_name,
              R"({"weight_map":{"a":")" + std::string(first) + R"(","b":")" + first + R"(","c":")" + second + "\"}}");
  CHECK(Checkpoint(dir.path()).index_metadata().is_null());
}

TEST_CASE("checkpoint: several files and no index", "[io]") {
  const TempDir dir;
  write_sharded(dir);
  std::filesystem::remove(dir / index_name);
  CHECK_THROWS_WITH(Checkpoint(dir.path()), has_text(first) && has_text(second) && has_text(index_name));
  CHECK(Checkpoint(dir.path(), Checkpoint::Source::headers).tensor_names() == Names{"b", "a", "c"});
  // Beside what looks like shards, model.safetensors may be one of two models.
  write_bytes(dir / "model.safetensors", good_safetensors({{"x", 1}}));
  CHECK_THROWS_AS(Checkpoint(dir.path()), FormatError);
  // Beside files of other kinds it is the model.
  std::filesystem::remove(dir / first);
  std::filesystem::rename(dir / second, dir / "adapter_model.safetensors");
  write_bytes(dir / "consolidated.safetensors", "not read");
  const Checkpoint model(dir.path());
  CHECK(model.tensor_names() == Names{"x"});
  CHECK(model.left_behind() == Names{"adapter_model.safetensors", "consolidated.safetensors"});
}

TEST_CASE("checkpoint: K20 what is carried over, and what stays behind", "[io]") {
  const TempDir dir;
  write_single(dir);
  const Names kept{"README.md", "chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer.model"};
  const Names left{"Model.BIN",
                   "consolidated.00.pth",
                   "fp16.safetensors",
                   "m.gguf",
                   "m.onnx",
                   "original/",
                   "pipe",
                   "pytorch_model.bin",
                   "pytorch_model.bin.index.json",
                   "rust_model.ot",
                   "tf_model.h5",
                   "x.msgpack",
                   "x.pt"};
  for (const std::string& name : kept) write_bytes(dir / name, "x");
  for (const std::string& name : left) {
    if (name == "pipe") {
      REQUIRE(::mkfifo((dir / name).c_str(), 0600) == 0);
    } else if (name.back() == '/') {
      std::filesystem::create_directory(dir / name);
    } else {
      write_bytes(dir / name, "x");
    }
  }
  const Checkpoint model(dir.path());
  CHECK(model.other_files() == kept);
  CHECK(model.left_behind() == left);
  CHECK_FALSE(model.manifest_path().has_value());
  write_bytes(dir / "rmsfold.json", "{}");
  CHECK(Checkpoint(dir.path()).manifest_path() == dir / "rmsfold.json");
  CHECK(Checkpoint(dir.path()).other_files() == kept);
}

TEST_CASE("checkpoint: links are followed", "[io]") {
  const TempDir store;
  const TempDir dir;
  write_sharded(store);
  for (const char* const name : {"config.json", first, second, index_name})
    std::filesystem::create_symlink(store / name, dir / name);
  std::filesystem::create_symlink(dir.path(), store / "link");
  const Checkpoint model(store / "link");
  CHECK(model.tensor_names() == Names{"b", "a", "c"});
  CHECK(model.read("c").size() == 12);
}
