// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/wire.h"

#include <ATen/ops/empty.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/error.h"
#include "comm/c10d/store_handle.h"
#include "comm/c10d/translate.h"

namespace expertmesh::comm {
namespace {

constexpr std::chrono::milliseconds kSlice{50};

// Set by Gloo's thread when the operation has ended. Shared: the waiter may have given up by then.
struct Ending {
  std::mutex mutex;
  std::condition_variable changed;
  bool has_ended = false;
};

std::shared_ptr<gloo::transport::Device> make_device(bool is_one_host) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface != nullptr && *interface != '\0') {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (is_one_host) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

struct WireBuffer::Impl {
  at::Tensor bytes;
};

WireBuffer::WireBuffer(int64_t bytes) : impl_(std::make_unique<Impl>()), size_(bytes) {
  impl_->bytes = at::empty({bytes}, at::TensorOptions(at::kByte));
  data_ = static_cast<std::byte*>(impl_->bytes.mutable_data_ptr());
}

WireBuffer::~WireBuffer() = default;

struct Wire::Impl {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  bool is_broken = false;

  void wait(const c10::intrusive_ptr<c10d::Work>& work, const Tick& tick) {
    const auto ending = std::make_shared<Ending>();
    work->getFuture()->addCallback([ending](c10::ivalue::Future&) {
      const std::lock_guard lock(ending->mutex);
      ending->has_ended = true;
      ending->changed.notify_all();
    });
    std::unique_lock lock(ending->mutex);
    while (!ending->changed.wait_for(lock, kSlice, [&] { return ending->has_ended; })) {
      lock.unlock();
      tick();
      lock.lock();
    }
    lock.unlock();
    work->wait();  // throws what the operation failed with
  }

  template <typename Start>
  void run(Start start, const Tick& tick) {
    if (is_broken) throw WireLost("an earlier operation failed");
    is_broken = true;
    try {
      wait(start(), tick);
    } catch (const c10::Error& error) {
      throw WireLost(short_c10_message(error.what_without_backtrace()));
    } catch (const gloo::Exception& error) {
      throw WireLost(short_c10_message(error.what()));
    }
    is_broken = false;
  }
};

Wire::Wire(const ControlStore& store, const std::string& key, int rank, int size, bool is_one_host,
           std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>()) {
  try {
    const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->threads = 1;
    options->devices.push_back(make_device(is_one_host));
    const auto keys = c10::make_intrusive<c10d::PrefixStore>(key, store.handle().prefixed);
    impl_->group = c10::make_intrusive<c10d::ProcessGroupGloo>(keys, rank, size, options);
  } catch (const std::exception& error) {
    throw base::make_error(base::Code::kCommSetup, "comm/gloo", "cannot connect the ranks of {}: {}", key,
                           short_c10_message(error.what()))
        .hint("Set GLOO_SOCKET_IFNAME to the network interface that the hosts share.");
  }
}

Wire::~Wire() {
  if (impl_->is_broken) impl_->group.release();  // see "broken" in the header
}

void Wire::all_to_all(const WireBuffer& send, const std::vector<int64_t>& send_counts, WireBuffer& recv,
                      const std::vector<int64_t>& recv_counts, const Tick& tick) {
  impl_->run(
      [&] {
        // The call takes the vectors apart.
        std::vector<int64_t> to = send_counts;
        std::vector<int64_t> from = recv_counts;
        at::Tensor input = send.impl_->bytes.narrow(0, 0, std::accumulate(to.begin(), to.end(), int64_t{0}));
        at::Tensor output = recv.impl_->bytes.narrow(0, 0, std::accumulate(from.begin(), from.end(), int64_t{0}));
        return impl_->group->alltoall_base(output, input, from, to);
      },
      tick);
}

void Wire::all_gather(const WireBuffer& send, int64_t bytes, WireBuffer& recv, const Tick& tick) {
  impl_->run(
      [&] {
        at::Tensor input = send.impl_->bytes.narrow(0, 0, bytes);
        at::Tensor output = recv.impl_->bytes.narrow(0, 0, bytes * impl_->group->getSize());
        return impl_->group->_allgather_base(output, input);
      },
      tick);
}

void Wire::broadcast(WireBuffer& data, int64_t bytes, int root, const Tick& tick) {
  impl_->run(
      [&] {
        std::vector<at::Tensor> tensors = {data.impl_->bytes.narrow(0, 0, bytes)};
        c10d::BroadcastOptions options;
        options.rootRank = root;
        return impl_->group->broadcast(tensors, options);
      },
      tick);
}

}  // namespace expertmesh::comm
