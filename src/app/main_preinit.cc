// SPDX-License-Identifier: Apache-2.0
// OpenMP reads how its threads wait when its library is loaded, before main: waiting threads must sleep, because
// spinning ones slow a busy machine by orders of magnitude. Only some microseconds they may spin: without that, a token
// that is generated pays a hundred times for waking a thread. So the program starts itself once more with that set,
// before any library is initialised; that costs 20 ms here and would cost 200 in main.
// Not under sanitizers, which are not ready then.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <unistd.h>

#include <cstring>
#include <vector>

namespace {

const char* value_of(char** environment, const char* name) {
  const size_t length = std::strlen(name);
  for (char** entry = environment; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') return *entry + length + 1;
  }
  return nullptr;
}

void restart_with_passive_waits(int, char** argv, char** environment) {
  if (value_of(environment, "OMP_WAIT_POLICY") != nullptr || value_of(environment, "EXPERTMESH_NO_RESTART") != nullptr)
    return;
  std::vector<char*> extended;
  for (char** entry = environment; *entry != nullptr; ++entry) extended.push_back(*entry);
  static char wait_policy[] = "OMP_WAIT_POLICY=passive";
  extended.push_back(wait_policy);
  static char spin_count[] = "GOMP_SPINCOUNT=1000";
  if (value_of(environment, "GOMP_SPINCOUNT") == nullptr) extended.push_back(spin_count);
  extended.push_back(nullptr);
  execve("/proc/self/exe", argv, extended.data());
  // Where that fails, go on: slower, not wrong.
}

__attribute__((section(".preinit_array"), used)) void (*const g_restart)(int, char**,
                                                                         char**) = &restart_with_passive_waits;

}  // namespace
#endif
