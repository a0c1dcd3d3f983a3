// SPDX-License-Identifier: Apache-2.0
// Row files: JSON Lines, or one JSON array in a .json file, mapped and split into the text of single rows (spec 4.1).
// Splitting looks at brackets and quotes only; each row is parsed on its own, by any thread.
// Errors: kData, at FILE:LINE or FILE:LINE:COLUMN.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace expertmesh::data {

// The text of one row; a view into the file.
struct RowText {
  std::string_view text;
  uint32_t line = 0;     // from 1: where the row starts
  uint32_t element = 0;  // from 1 for rows of an array, 0 for JSON Lines
};

// A mapped row file. Threads: any, once open.
class RowFile {
 public:
  // Refuses by name what is not built (csv, parquet, arrow, txt) or no row file at all, and bytes that cannot be text.
  RowFile(const base::FileSystem& fs, std::string path);

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return text_; }  // as on disk
  std::vector<RowText> split() const;

  // The row as an object; anything else is an error.
  base::Json parse(const RowText& row) const;
  // "rows.jsonl:7"
  std::string where(const RowText& row) const;

 private:
  std::string path_;
  std::unique_ptr<base::MappedFile> map_;
  std::string_view text_;
};

// The files behind a path: itself, or the files of a directory (all of one kind), sorted by name.
std::vector<std::string> list_row_files(const base::FileSystem& fs, const std::string& path);

}  // namespace expertmesh::data
