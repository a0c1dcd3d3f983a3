// SPDX-License-Identifier: Apache-2.0
// Writes a golden model for tests that start programs:  write_golden_model NAME EXISTING_FOLDER
#include <cstdio>
#include <exception>

#include "golden.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: write_golden_model NAME EXISTING_FOLDER\n");
    return 2;
  }
  try {
    expertmesh::golden::write_golden_model(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_golden_model: %s\n", error.what());
    return 1;
  }
  return 0;
}
