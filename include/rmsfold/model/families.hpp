// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The model families, as tables. A new family is a new table; no code knows a family's name.

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rmsfold/core/error.hpp>
#include <rmsfold/model/family/dense.hpp>
#include <rmsfold/model/family/encoders.hpp>
#include <rmsfold/model/family/hybrid.hpp>
#include <rmsfold/model/family/layer_norm.hpp>
#include <rmsfold/model/family/moe.hpp>
#include <rmsfold/model/family/multimodal.hpp>
#include <rmsfold/model/family/residual_gain.hpp>

namespace rmsfold::model {

/// Every family this version handles.
[[nodiscard]] inline const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> list;
    for (auto group : {family::dense_families, family::moe_families, family::residual_gain_families, family::layer_norm_families, family::hybrid_families, family::encoder_families}) {
      std::vector<Family> part = group();
      std::move(part.begin(), part.end(), std::back_inserter(list));
    }
    const std::size_t texts = list.size();
    for (const Wrapper& wrapper : family::wrappers()) {
      for (const WrappedText& text : wrapper.texts) {
        for (std::size_t t = 0; t < texts; ++t) {
          if (list[t].model_type == text.model_type) list.push_back(wrapped(wrapper, text, Family(list[t])));
        }
      }
    }
    return list;
  }();
  return all;
}

/// Families that were looked at and are refused, with the reason.
[[nodiscard]] inline const std::vector<std::pair<std::string, std::string>>& refused_families() {
  static const std::vector<std::pair<std::string, std::string>> all = family::refused_encoders();
  return all;
}

}  // namespace rmsfold::model
