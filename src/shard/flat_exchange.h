// SPDX-License-Identifier: Apache-2.0
// A unit's gather and reduction through one flat buffer: pieces are packed rank by rank, travel as one, and are
// unpacked. The alternative to handing the group one part a parameter; equal in result, different in copies and message
// count.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace expertmesh::shard {

// Posts on construction; finish() waits and fills the parts' full tensors. Collective over the group.
class FlatGather {
 public:
  FlatGather(comm::Group& group, std::vector<comm::GatherPart> parts, std::string_view tag);
  void finish();

 private:
  comm::Group& group_;
  std::vector<comm::GatherPart> parts_;
  std::vector<int64_t> bytes_;  // a rank
  std::unique_ptr<std::byte[]> local_, full_;
  std::unique_ptr<comm::Work> work_;
};

// Collective over the group.
void flat_reduce_scatter(comm::Group& group, const std::vector<comm::ReducePart>& parts, std::string_view tag);

}  // namespace expertmesh::shard
