// SPDX-License-Identifier: Apache-2.0
// Writes the pages that are made from the configuration schema: config_docs page > docs/config.md,
// config_docs keys > tests/golden/config_keys.txt.
#include <cstdio>
#include <string_view>

#include "config/docs.h"

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  std::string text;
  if (what == "page") {
    text = expertmesh::config::config_page_markdown();
  } else if (what == "keys") {
    text = expertmesh::config::config_key_list();
  } else {
    std::fputs("usage: config_docs page|keys\n", stderr);
    return 2;
  }
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0 ? 0 : 1;
}
