// What a compiler must be able to do before it is given a kernel: a C++17 shared object that throws and loads.

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
