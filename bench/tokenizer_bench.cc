// SPDX-License-Identifier: Apache-2.0
// Times encode_batch: tokenizer_bench MODEL_DIR TEXTS [--threads N] [--repeat N] [--ids FILE] [--wait 1]
// TEXTS is a file of texts, each after its length as four bytes, least first (bench/tokenizer_vs_hf.py writes it).
// Prints one line per pass: seconds, CPU seconds of all threads, bytes, ids. --wait 1: each pass waits for a line on
// stdin. --ids writes, for each text, the number of its ids and the ids, as 32-bit integers.
// "-" for TEXTS: the CPU time for one endless word of 1, 2, 4, 8 and 16 MB.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer.h"

namespace {

using expertmesh::data::Tokenizer;

struct Options {
  std::string model, texts, ids;
  int threads = 1;
  int repeat = 1;
  bool wait = false;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::string> read_texts(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<std::string> out;
  uint32_t length = 0;
  while (file.read(reinterpret_cast<char*>(&length), sizeof length)) {
    std::string text(length, '\0');
    if (!file.read(text.data(), length)) throw std::runtime_error(path + " ends inside a text");
    out.push_back(std::move(text));
  }
  return out;
}

void write_ids(const std::string& path, const std::vector<std::vector<int32_t>>& batch) {
  std::ofstream file(path, std::ios::binary);
  for (const auto& ids : batch) {
    const auto count = static_cast<uint32_t>(ids.size());
    file.write(reinterpret_cast<const char*>(&count), sizeof count);
    file.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
  }
}

void time_batches(const Tokenizer& tokenizer, const Options& options) {
  const auto texts = read_texts(options.texts);
  size_t bytes = 0;
  for (const auto& text : texts) bytes += text.size();
  for (int pass = 0; pass < options.repeat; ++pass) {
    if (options.wait) {
      std::string line;
      if (!std::getline(std::cin, line)) return;
    }
    const std::clock_t cpu_start = std::clock();
    const double start = seconds_now();
    const auto batch = tokenizer.encode_batch(texts, options.threads);
    const double taken = seconds_now() - start;
    const double cpu = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
    size_t count = 0;
    for (const auto& ids : batch) count += ids.size();
    if (pass == 0 && !options.ids.empty()) write_ids(options.ids, batch);
    std::printf("%.6f %.6f %zu %zu\n", taken, cpu, bytes, count);
    std::fflush(stdout);
  }
}

void time_long_words(const Tokenizer& tokenizer) {
  struct Kind {
    const char* name;
    std::string unit;
  };
  uint32_t state = 1;
  std::string letters;
  for (int i = 0; i < 1 << 16; ++i) {
    state = state * 1664525U + 1013904223U;
    letters.push_back(static_cast<char>('a' + (state >> 24) % 26));
  }
  const Kind kinds[] = {{"one letter", "a"},
                        {"random letters", letters},
                        {"spaces", " "},
                        {"Chinese", "\xe4\xbd\xa0\xe5\xa5\xbd"},
                        {"joined emoji", "\xf0\x9f\x91\xa9\xe2\x80\x8d"},
                        {"marks out of order", "\xcc\x81\xcc\xa3"}};
  for (const Kind& kind : kinds) {
    for (size_t megabytes = 1; megabytes <= 16; megabytes *= 2) {
      std::string word;
      while (word.size() < megabytes * 1'000'000) word += kind.unit;
      const std::clock_t start = std::clock();
      const size_t count = tokenizer.encode(word).size();
      const double cpu = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      std::printf("%-20s %2zu MB: %.3f s, %zu ids\n", kind.name, megabytes, cpu, count);
    }
  }
}

Options parse(int count, char** values) {
  if (count < 3)
    throw std::runtime_error("tokenizer_bench MODEL_DIR TEXTS|- [--threads N] [--repeat N] [--ids FILE] [--wait 1]");
  Options options{.model = values[1], .texts = values[2], .ids = {}};
  for (int i = 3; i + 1 < count; i += 2) {
    const std::string name = values[i];
    if (name == "--threads") {
      options.threads = std::atoi(values[i + 1]);
    } else if (name == "--repeat") {
      options.repeat = std::atoi(values[i + 1]);
    } else if (name == "--wait") {
      options.wait = std::atoi(values[i + 1]) != 0;
    } else if (name == "--ids") {
      options.ids = values[i + 1];
    } else {
      throw std::runtime_error("unknown option " + name);
    }
  }
  return options;
}

}  // namespace

int main(int count, char** values) {
  try {
    const Options options = parse(count, values);
    const auto files = expertmesh::base::make_posix_file_system(expertmesh::base::Code::kModel);
    const double start = seconds_now();
    const Tokenizer tokenizer = Tokenizer::load(*files, options.model);
    std::fprintf(stderr, "loaded in %.3f s\n", seconds_now() - start);
    if (options.texts == "-") {
      time_long_words(tokenizer);
    } else {
      time_batches(tokenizer, options);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
