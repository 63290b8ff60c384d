// Compares every backend of the library with the portable one, over many small random cases.
//
//   laws [--seed N] [--times N] [--only LAW[:NUMBER]] [--spoil BACKEND]
//
// Prints the backends that ran and a digest of what the portable one answered, which is the same on every
// machine. Exit 1: a law is broken. --spoil damages one answer of one backend in each law: it must be seen.
#include <cstdio>
#include <cstring>
#include <sstream>

#include "laws.hpp"

namespace {

struct Options {
  uint64_t seed = 1;
  int times = 1;
  std::string only, spoil;
};

uint64_t digest = 0xcbf29ce484222325u;  // FNV-1a

void digest_bytes(const std::vector<uint8_t>& bytes) {
  for (const uint8_t byte : bytes) digest = (digest ^ byte) * 0x100000001b3u;
}

// Those that are built in and that this machine has, the portable one first.
std::vector<std::string> backends() {
  std::vector<std::string> names{"portable"};
  std::istringstream built(pb_backends());
  for (std::string name; built >> name;)
    if (name != names.front() && pb_supports(name.c_str())) names.push_back(name);
  return names;
}

bool complain(const Law& law, int number, const std::string& backend, const Case& one, const char* what) {
  std::printf("%s:%d on %s: %s\n  %s\n", law.name, number, backend.c_str(), what, one.about.c_str());
  return false;
}

// Runs a case everywhere; false where the backends disagree.
bool holds(const Law& law, int number, const Case& one, const std::vector<std::string>& names, const Options& options) {
  std::vector<uint8_t> expected;
  for (const std::string& name : names) {
    if (pb_use_isa(name.c_str())) return complain(law, number, name, one, "the backend is gone");
    Outputs outputs;
    const int code = one.call(outputs);
    if (code) return complain(law, number, name, one, ("refused with code " + std::to_string(code)).c_str());
    if (!outputs.intact()) return complain(law, number, name, one, "wrote in front of an output");
    Random anywhere(options.seed, 99, static_cast<uint64_t>(number));
    if (name == options.spoil && !outputs.spoil(anywhere)) continue;
    const std::vector<uint8_t> found = outputs.contents();
    if (name == names.front()) {
      expected = found;
      digest_bytes(found);
    } else if (found != expected) {
      size_t at = 0;
      while (found[at] == expected[at]) ++at;
      const std::string where = "differs from portable at byte " + std::to_string(at);
      return complain(law, number, name, one, where.c_str());
    }
  }
  return true;
}

// How many cases of a law are broken; the first of them is told.
int broken(const Law& law, uint64_t index, const std::vector<std::string>& names, const Options& options) {
  for (int number = 0; number < law.cases * options.times; ++number) {
    const std::string name = law.name + (":" + std::to_string(number));
    if (!options.only.empty() && options.only != name && options.only != law.name) continue;
    Random random(options.seed, index, static_cast<uint64_t>(number));
    if (!holds(law, number, law.make(random), names, options)) return 1;
  }
  return 0;
}

bool read(int count, char** words, Options& options) {
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = words[i], value = words[i + 1];
    if (name == "--seed") options.seed = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "--times") options.times = std::atoi(value.c_str());
    else if (name == "--only") options.only = value;
    else if (name == "--spoil") options.spoil = value;
    else return false;
  }
  return count % 2 == 1;
}

}  // namespace

int main(int count, char** words) {
  Options options;
  if (!read(count, words, options)) {
    std::fprintf(stderr, "usage: laws [--seed N] [--times N] [--only LAW[:NUMBER]] [--spoil BACKEND]\n");
    return 2;
  }
  const std::vector<std::string> names = backends();
  std::printf("backends:");
  for (const std::string& name : names) std::printf(" %s", name.c_str());
  std::printf("\n");
  int laws = 0, failed = 0, cases = 0;
  for (const auto* group : {&binary_laws, &weight_laws, &training_laws}) {
    for (const Law& law : *group) {
      failed += broken(law, static_cast<uint64_t>(laws++), names, options);
      cases += law.cases * options.times;
    }
  }
  std::printf("laws: %d, broken: %d, cases: %d, seed: %llu\n", laws, failed, cases,
              static_cast<unsigned long long>(options.seed));
  std::printf("digest: %016llx\n", static_cast<unsigned long long>(digest));
  return failed ? 1 : 0;
}
