// SPDX-License-Identifier: Apache-2.0
// The quick check of Unicode Annex 15 walks the text. A part that fails it is normalised from the last character that
// nothing before can combine with up to the next such character; all other bytes are copied as they are.
#include "data/tokenizer_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "data/tokenizer_unicode.h"

namespace expertmesh::data {
namespace {

constexpr size_t kMaxDecomposition = 32;

// 0 for marks that the reference does not know yet: nothing is moved across them.
int combining_class(int32_t point) {
  if ((char_flags()[point] & kCombining) == 0) return 0;
  return utf8proc_get_property(point)->combining_class;
}

// Appends the canonical decomposition of one character.
void decompose(uint32_t point, std::vector<int32_t>& out) {
  const size_t before = out.size();
  out.resize(before + kMaxDecomposition);
  int boundary_class = 0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE);
  const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<int32_t>(point), out.data() + before,
                                                         kMaxDecomposition, options, &boundary_class);
  EXPERTMESH_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(kMaxDecomposition), "U+{:04X}: {}", point,
                   count);
  out.resize(before + static_cast<size_t>(count));
}

// Orders each run of marks by combining class, keeping the order of equals. utf8proc's own way is quadratic in the
// length of a run, which a hostile text could use.
void order_marks(std::vector<int32_t>& points) {
  auto at = points.begin();
  while (at != points.end()) {
    if (combining_class(*at) == 0) {
      ++at;
      continue;
    }
    const auto end = std::find_if(at, points.end(), [](int32_t point) { return combining_class(point) == 0; });
    std::stable_sort(at, end, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    at = end;
  }
}

void append_normalized(std::string_view part, std::string& out) {
  std::vector<int32_t> points;
  for (size_t at = 0; at < part.size();) {
    const CodePoint point = code_point_at(part.data() + at);
    decompose(point.value, points);
    at += point.length;
  }
  order_marks(points);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  EXPERTMESH_CHECK(count >= 0, "{}", utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(static_cast<uint32_t>(points[static_cast<size_t>(i)]), out);
}

// Walks a text for parts that are not in NFC.
class QuickCheck {
 public:
  explicit QuickCheck(std::string_view text) : text_(text), flags_(char_flags()) {}

  // Moves to the next part that has to be normalised; false at the end of the text.
  bool next() {
    size_t starter = at_;
    int last_class = 0;
    bool bad = false;
    while (at_ < text_.size()) {
      const auto byte = static_cast<unsigned char>(text_[at_]);
      const CodePoint point = byte < 0x80 ? CodePoint{byte, 1} : code_point_at(text_.data() + at_);
      const uint8_t flags = flags_[point.value] & (kCombining | kMayCompose);
      if (flags == 0) {
        if (bad) break;
        starter = at_;
        last_class = 0;
      } else {
        const int current = combining_class(static_cast<int32_t>(point.value));
        bad = bad || (flags & kMayCompose) != 0 || (current != 0 && last_class > current);
        last_class = current;
      }
      at_ += point.length;
    }
    first_ = starter;
    return bad;
  }

  size_t first() const { return first_; }
  size_t last() const { return at_; }

 private:
  std::string_view text_;
  const uint8_t* flags_;
  size_t at_ = 0;
  size_t first_ = 0;
};

}  // namespace

std::string_view normalize_nfc(std::string_view text, std::string& storage) {
  QuickCheck check(text);
  if (!check.next()) return text;
  storage.clear();
  storage.reserve(text.size());
  size_t copied = 0;
  do {
    storage.append(text.substr(copied, check.first() - copied));
    append_normalized(text.substr(check.first(), check.last() - check.first()), storage);
    copied = check.last();
  } while (check.next());
  storage.append(text.substr(copied));
  return storage;
}

}  // namespace expertmesh::data
