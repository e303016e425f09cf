// What was found wrong, once a kind and source line: the first occurrence in words, and how many there were.
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <vector>

#include <executor/operation.hpp>

namespace hgemm::executor {

inline std::string base_name(char const* path) {
  if (!path) return "";
  char const* const slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

inline std::string quoted(std::string const& text) {
  std::string result = "\"";
  for (char const c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) >= ' ') {
      result += c;
    } else {
      result += ' ';
    }
  }
  return result + '"';
}

__attribute__((format(printf, 1, 2))) inline std::string text(char const* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char buffer[1024];
  vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

class Findings {
 public:
  // Counts an occurrence; the first of its kind and line wants words, which `say` then makes.
  template <class Say>
  void add(char const* kind, Site site, Say say) {
    for (Finding& finding : all_) {
      if (finding.site.line != site.line || strcmp(finding.kind, kind) != 0) continue;
      if (finding.site.file != site.file && base_name(finding.site.file) != base_name(site.file)) continue;
      ++finding.count;
      return;
    }
    all_.push_back({kind, site, 1, say()});
  }
  bool empty() const { return all_.empty(); }

  std::string json() const {
    std::string result;
    for (Finding const& finding : all_) {
      result += result.empty() ? "" : ", ";
      result += "{\"kind\": " + quoted(finding.kind) + ", \"count\": " + std::to_string(finding.count) +
                ", \"message\": " + quoted(finding.message) + ", \"file\": " + quoted(base_name(finding.site.file)) +
                ", \"line\": " + std::to_string(finding.site.line) + "}";
    }
    return "[" + result + "]";
  }

 private:
  struct Finding {
    char const* kind;
    Site site;
    uint64_t count;
    std::string message;
  };
  std::vector<Finding> all_;
};

}  // namespace hgemm::executor
