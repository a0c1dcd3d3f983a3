// SPDX-License-Identifier: Apache-2.0
#include "comm/single.h"

#include "base/check.h"
#include "base/log.h"
#include "comm/partition.h"
#include "comm/reduce.h"
#include "comm/world.h"

namespace expertmesh::comm {
namespace {

struct DoneWork : Work {
  void wait() override {}
};

struct SingleWindow : Window {
  explicit SingleWindow(std::span<void* const> own) : buffers(own.begin(), own.end()) {}
  void* buffer(int /*member*/, size_t index) const override { return buffers[index]; }
  void close() override {}

  std::vector<void*> buffers;
};

class SingleGroup : public PostingGroup {
 public:
  SingleGroup(std::string name, int member) : PostingGroup(std::move(name), {member}, 0) {}

  bool shares_memory() const override { return true; }
  std::unique_ptr<Window> open_window(std::span<void* const> buffers, std::string_view /*tag*/) override {
    return std::make_unique<SingleWindow>(buffers);
  }

 protected:
  std::unique_ptr<Work> post(Collective collective) override {
    for (const GatherPart& part : collective.gather) place_gathered(part, 0, part.local);
    for (const ReducePart& part : collective.reduce) {
      const void* source = part.full;
      sum_to_float({&source, 1}, part.dtype, part.local, part.rows * part.lens[0], part.accumulate);
    }
    if (collective.op == Op::kAllToAll) {
      const AllToAllPart& part = collective.exchange;
      EXPERTMESH_CHECK(part.send_counts[0] == part.recv_counts[0], "{}: sends {} rows to itself but expects {}",
                       collective.tag, part.send_counts[0], part.recv_counts[0]);
      const int64_t bytes = part.send_counts[0] * part.row_bytes;
      copy_rows(static_cast<std::byte*>(part.recv), bytes, static_cast<const std::byte*>(part.send), bytes, 1, bytes);
    }
    return std::make_unique<DoneWork>();
  }
};

class SingleWorld : public World {
 public:
  SingleWorld() : all_(make_single_group("world", 0)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  std::string_view engine() const override { return "single"; }
  bool shares_memory() const override { return true; }
  Group& all() override { return *all_; }

  std::shared_ptr<Group> make_group(std::string name, const std::vector<std::vector<int>>& groups) override {
    find_own_group(groups, 1, 0, name);
    return make_single_group(std::move(name), 0);
  }

  // Nobody waits; the caller's exception ends the job.
  void abort(const base::Error& cause) override { base::log_debug("abort of a world of one: {}", cause.text()); }

  std::optional<base::Error> abort_cause() const override { return std::nullopt; }
  Ledger& ledger() override { return ledger_; }

 private:
  std::shared_ptr<Group> all_;
  Ledger ledger_;
};

}  // namespace

std::shared_ptr<Group> make_single_group(std::string name, int member) {
  return std::make_shared<SingleGroup>(std::move(name), member);
}

std::unique_ptr<World> make_single_world(const WorldOptions& /*options*/) { return std::make_unique<SingleWorld>(); }

}  // namespace expertmesh::comm
