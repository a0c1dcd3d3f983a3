// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/store.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "comm/c10d/store_handle.h"
#include "comm/c10d/translate.h"

namespace expertmesh::comm {
namespace {

// libtorch's own limit on connecting, with its better words, comes before ours.
constexpr std::chrono::milliseconds kOwnEndsFirst{5000};

std::vector<uint8_t> to_bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

[[noreturn]] void throw_lost(const std::string& text) {
  if (text.find("Socket Timeout") != std::string::npos) throw StoreSilent("no answer in time");
  throw StoreLost(text);
}

// Runs one call on the store; whatever fails means that the server is gone.
template <typename Call>
auto guarded(ControlStore::Handle& handle, Call call) {
  if (handle.is_lost) throw StoreLost("an earlier call failed");
  try {
    return call();
  } catch (const c10::Error& error) {
    handle.is_lost = true;
    throw_lost(short_c10_message(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    handle.is_lost = true;
    throw_lost(short_c10_message(error.what()));
  }
}

int port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

// libtorch waits for answers without a limit and keeps its sockets to itself: find those that lead to the store.
void limit_reads_from(int port, std::chrono::milliseconds limit) {
  const timeval time{.tv_sec = limit.count() / 1000, .tv_usec = limit.count() % 1000 * 1000};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || port_of(peer) != port) continue;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  }
}

// The handshake has no limit either: it runs beside, and is left behind where something else listens at the port.
c10::intrusive_ptr<c10d::Store> connect_within(const std::string& address, const c10d::TCPStoreOptions& options,
                                               std::chrono::milliseconds limit) {
  auto made = std::make_shared<std::promise<c10::intrusive_ptr<c10d::Store>>>();
  auto result = made->get_future();
  std::thread([made, address, options] {
    try {
      made->set_value(c10::make_intrusive<c10d::TCPStore>(address, options));
    } catch (...) {
      made->set_exception(std::current_exception());
    }
  }).detach();
  if (result.wait_for(limit) != std::future_status::ready) return nullptr;
  return result.get();
}

base::Error connect_error(const Launch& launch, bool is_server, const std::string& text) {
  const bool is_in_use = text.find("EADDRINUSE") != std::string::npos ||
                         text.find("address already in use") != std::string::npos ||
                         text.find("Address already in use") != std::string::npos;
  if (is_in_use) {
    return base::make_error(base::Code::kCommSetup, "comm/port", "port {} on {} is in use (MASTER_PORT)", launch.port,
                            launch.address)
        .hint("Set MASTER_PORT to a free port, the same for all ranks, or end the other job.");
  }
  if (is_server) {
    return base::make_error(base::Code::kCommSetup, "comm/store", "rank 0 cannot serve at {}:{}: {}", launch.address,
                            launch.port, text)
        .hint("MASTER_ADDR must be an address of the host of rank 0, MASTER_PORT a port that may be opened there.");
  }
  return base::make_error(base::Code::kCommSetup, "comm/store", "rank {} finds nobody at {}:{}: {}", launch.rank,
                          launch.address, launch.port, text)
      .hint("Check that rank 0 is started, and that MASTER_ADDR and MASTER_PORT are the same for all ranks.");
}

}  // namespace

ControlStore::ControlStore(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
ControlStore::~ControlStore() = default;

std::unique_ptr<ControlStore> ControlStore::connect(const Launch& launch, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.port);
  options.isServer = launch.rank == 0 && !launch.has_agent_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  auto handle = std::make_unique<Handle>();
  handle->prefix = "expertmesh/" + launch.run_key;
  handle->port = launch.port;
  try {
    handle->base = connect_within(launch.address, options, timeout + kOwnEndsFirst);
  } catch (const c10::Error& error) {
    throw connect_error(launch, options.isServer, short_c10_message(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw connect_error(launch, options.isServer, short_c10_message(error.what()));
  }
  if (handle->base == nullptr) {
    throw base::make_error(base::Code::kCommSetup, "comm/store", "what listens at {}:{} is not rank 0 of this job",
                           launch.address, launch.port)
        .hint("Set MASTER_PORT to a free port, the same for all ranks, and look at the output of rank 0.");
  }
  handle->prefixed = c10::make_intrusive<c10d::PrefixStore>(handle->prefix, handle->base);
  std::unique_ptr<ControlStore> store(new ControlStore(std::move(handle)));
  store->limit_answers(timeout);
  return store;
}

void ControlStore::limit_answers(std::chrono::milliseconds limit) {
  handle_->answer_limit = limit;
  limit_reads_from(handle_->port, limit);
}

std::unique_ptr<ControlStore> ControlStore::clone() const {
  return guarded(*handle_, [&] {
    auto handle = std::make_unique<Handle>();
    handle->prefix = handle_->prefix;
    handle->port = handle_->port;
    handle->base = handle_->base->clone();
    handle->prefixed = c10::make_intrusive<c10d::PrefixStore>(handle->prefix, handle->base);
    std::unique_ptr<ControlStore> store(new ControlStore(std::move(handle)));
    store->limit_answers(handle_->answer_limit);
    return store;
  });
}

void ControlStore::set(std::string_view key, std::string_view value) {
  guarded(*handle_, [&] { handle_->prefixed->set(std::string(key), to_bytes(value)); });
}

std::optional<std::string> ControlStore::try_get(std::string_view key) {
  return guarded(*handle_, [&]() -> std::optional<std::string> {
    const std::string name(key);
    if (!handle_->prefixed->check({name})) return std::nullopt;
    return to_text(handle_->prefixed->get(name));
  });
}

std::string ControlStore::set_once(std::string_view key, std::string_view value) {
  return guarded(*handle_,
                 [&] { return to_text(handle_->prefixed->compareSet(std::string(key), {}, to_bytes(value))); });
}

int64_t ControlStore::add(std::string_view key, int64_t amount) {
  return guarded(*handle_, [&] { return handle_->prefixed->add(std::string(key), amount); });
}

}  // namespace expertmesh::comm
