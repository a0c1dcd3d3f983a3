// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "app/command.h"

int main(int argc, char** argv) {
  expertmesh::app::prepare_process();
  return expertmesh::app::run(std::vector<std::string>(argv + 1, argv + argc));
}
