// SPDX-License-Identifier: Apache-2.0
// A group of processes: calls become tasks of the job's executor, which runs them in the order they were posted.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/c10d/job.h"
#include "comm/group.h"

namespace expertmesh::comm {

// `key` is the same on all members and names no other group. Collective over the members (connects them).
std::shared_ptr<Group> make_process_group(std::shared_ptr<ProcessJob> job, std::string name, const std::string& key,
                                          std::vector<int> members, int group_rank);

}  // namespace expertmesh::comm
