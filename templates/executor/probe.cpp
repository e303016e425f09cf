// Checks a host compiler: it must build a C++17 shared object that loads and can throw exceptions.

#include <stdexcept>
#include <string>

extern "C" int hgemm_probe(int digits) {
  try {
    if (digits > 0) throw std::length_error(std::string(digits, '9'));
  } catch (const std::exception& error) {
    return static_cast<int>(std::string(error.what()).size());
  }
  return 0;
}
