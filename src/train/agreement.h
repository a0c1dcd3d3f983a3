// SPDX-License-Identifier: Apache-2.0
// Before anything is allocated all ranks compare what they are about to do: a difference ends the run at once, with the
// keys, values and ranks that differ.
#pragma once

#include <string>

#include "comm/group.h"
#include "train/job.h"

namespace expertmesh::train {

// Throws kConfig (a key differs), kData (other rows), kModel (another config.json) or kInternal (another build).
// Collective over world.
void agree_on_job(const Job& job, comm::Group& world);

// The same for what the job does not say, such as `what` "the rows", told in lines of text. Throws kData.
// Collective over world.
void agree_on_input(const std::string& what, const std::string& lines, comm::Group& world);

// Rank 0's output directory on every rank. Collective over world.
std::string agree_on_output_dir(const std::string& output_dir, comm::Group& world);

}  // namespace expertmesh::train
