// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "comm/c10d/store_handle.h"
#include "comm/c10d/translate.h"

namespace expertmesh::comm {
namespace {

std::vector<uint8_t> to_bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// Runs one call on the store; whatever fails means that the server is gone.
template <typename Call>
auto guarded(Call call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    throw StoreLost(short_c10_message(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw StoreLost(short_c10_message(error.what()));
  }
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
  try {
    handle->base = c10::make_intrusive<c10d::TCPStore>(launch.address, options);
  } catch (const c10::Error& error) {
    throw connect_error(launch, options.isServer, short_c10_message(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw connect_error(launch, options.isServer, short_c10_message(error.what()));
  }
  handle->prefixed = c10::make_intrusive<c10d::PrefixStore>(handle->prefix, handle->base);
  return std::unique_ptr<ControlStore>(new ControlStore(std::move(handle)));
}

std::unique_ptr<ControlStore> ControlStore::clone() const {
  return guarded([&] {
    auto handle = std::make_unique<Handle>();
    handle->prefix = handle_->prefix;
    handle->base = handle_->base->clone();
    handle->prefixed = c10::make_intrusive<c10d::PrefixStore>(handle->prefix, handle->base);
    return std::unique_ptr<ControlStore>(new ControlStore(std::move(handle)));
  });
}

void ControlStore::set(std::string_view key, std::string_view value) {
  guarded([&] { handle_->prefixed->set(std::string(key), to_bytes(value)); });
}

std::optional<std::string> ControlStore::try_get(std::string_view key) {
  return guarded([&]() -> std::optional<std::string> {
    const std::string name(key);
    if (!handle_->prefixed->check({name})) return std::nullopt;
    return to_text(handle_->prefixed->get(name));
  });
}

std::string ControlStore::set_once(std::string_view key, std::string_view value) {
  return guarded([&] { return to_text(handle_->prefixed->compareSet(std::string(key), {}, to_bytes(value))); });
}

int64_t ControlStore::add(std::string_view key, int64_t amount) {
  return guarded([&] { return handle_->prefixed->add(std::string(key), amount); });
}

}  // namespace expertmesh::comm
