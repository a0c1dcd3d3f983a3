// SPDX-License-Identifier: Apache-2.0
#include "comm/decorators.h"

#include <algorithm>
#include <functional>
#include <thread>

#include "comm/collective.h"

namespace expertmesh::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Ready at a time; nothing inside where the call was dropped.
class SlowWork : public Work {
 public:
  SlowWork(std::unique_ptr<Work> inner, Clock::time_point ready) : inner_(std::move(inner)), ready_(ready) {}

  void wait() override {
    if (inner_) inner_->wait();
    std::this_thread::sleep_until(ready_);
  }

 private:
  std::unique_ptr<Work> inner_;
  Clock::time_point ready_;
};

// Hands every call on through pass(), with the bytes that it brings to the peers.
class PassingGroup : public Group {
 public:
  explicit PassingGroup(std::shared_ptr<Group> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  const std::vector<int>& members() const override { return inner_->members(); }

  std::unique_ptr<Work> all_gather_async(std::vector<GatherPart> parts, std::string_view tag) override {
    const int64_t bytes = make_all_gather(parts, size(), rank(), tag).bytes;
    return pass(bytes, [&] { return inner_->all_gather_async(std::move(parts), tag); });
  }
  std::unique_ptr<Work> reduce_scatter_async(std::vector<ReducePart> parts, std::string_view tag) override {
    const int64_t bytes = make_reduce_scatter(parts, size(), tag).bytes;
    return pass(bytes, [&] { return inner_->reduce_scatter_async(std::move(parts), tag); });
  }
  std::unique_ptr<Work> all_reduce_async(std::vector<AllReducePart> parts, ReduceOp op, std::string_view tag) override {
    const int64_t bytes = make_all_reduce(parts, op, tag).bytes;
    return pass(bytes, [&] { return inner_->all_reduce_async(std::move(parts), op, tag); });
  }
  std::unique_ptr<Work> all_to_all_async(AllToAllPart part, std::string_view tag) override {
    const int64_t own = part.send_counts[static_cast<size_t>(rank())];
    const int64_t bytes = (sum_of(part.send_counts) - own) * part.row_bytes;
    return pass(bytes, [&] { return inner_->all_to_all_async(part, tag); });
  }
  std::unique_ptr<Work> broadcast_async(std::span<std::byte> data, int root, std::string_view tag) override {
    const auto bytes = static_cast<int64_t>(data.size());
    return pass(bytes, [&] { return inner_->broadcast_async(data, root, tag); });
  }
  void barrier(std::string_view tag) override {
    const auto done = pass(0, [&]() -> std::unique_ptr<Work> {
      inner_->barrier(tag);
      return nullptr;
    });
    if (done) done->wait();
  }

 protected:
  using Post = std::function<std::unique_ptr<Work>()>;
  virtual std::unique_ptr<Work> pass(int64_t bytes, const Post& post) = 0;
  Group& inner() const { return *inner_; }

 private:
  std::shared_ptr<Group> inner_;
};

class FaultyGroup : public PassingGroup {
 public:
  FaultyGroup(std::shared_ptr<Group> inner, FaultPlan plan) : PassingGroup(std::move(inner)), plan_(std::move(plan)) {}

 protected:
  std::unique_ptr<Work> pass(int64_t bytes, const Post& post) override {
    ++sequence_;
    if (sequence_ == plan_.throw_at) {
      throw plan_.error.value_or(
          base::make_error(base::Code::kInternal, "comm/fault", "call {} of axis {} was to fail", sequence_, name()));
    }
    if (plan_.bytes_per_second > 0) {
      const std::chrono::duration<double> transfer(static_cast<double>(bytes) / plan_.bytes_per_second);
      link_is_free_ = std::max(link_is_free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(transfer);
    }
    const auto ready = std::max(link_is_free_, Clock::now()) + plan_.delay;
    return std::make_unique<SlowWork>(sequence_ == plan_.drop_at ? nullptr : post(), ready);
  }

 private:
  FaultPlan plan_;
  uint64_t sequence_ = 0;
  Clock::time_point link_is_free_;  // when the bytes of all calls so far have passed
};

class CountingGroup : public PassingGroup {
 public:
  CountingGroup(std::shared_ptr<Group> inner, int64_t& bytes) : PassingGroup(std::move(inner)), bytes_(bytes) {}

  bool shares_memory() const override { return inner().shares_memory(); }
  std::unique_ptr<Window> open_window(std::span<void* const> buffers, std::string_view tag) override {
    return inner().open_window(buffers, tag);
  }

 protected:
  std::unique_ptr<Work> pass(int64_t bytes, const Post& post) override {
    bytes_ += bytes;
    return post();
  }

 private:
  int64_t& bytes_;
};

}  // namespace

std::shared_ptr<Group> make_faulty_group(std::shared_ptr<Group> inner, FaultPlan plan) {
  return std::make_shared<FaultyGroup>(std::move(inner), std::move(plan));
}

std::shared_ptr<Group> make_counting_group(std::shared_ptr<Group> inner, int64_t& bytes) {
  return std::make_shared<CountingGroup>(std::move(inner), bytes);
}

}  // namespace expertmesh::comm
