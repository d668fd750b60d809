// SPDX-License-Identifier: Apache-2.0
// grammar_serve --vocab FILE: the line protocol on stdin and stdout, for score.py and for looking at one grammar by
// hand.
#include <chrono>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>

#include "galley/grammar/line_server.h"

int main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "--vocab") {
    std::cerr << "usage: grammar_serve --vocab FILE\n";
    return 2;
  }
  std::ifstream file(argv[2], std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  auto vocabulary = galley::grammar::ReadVocabularyFile(text.str());
  if (!vocabulary) {
    std::cerr << argv[2] << ": " << vocabulary.error().ToString() << "\n";
    return Info(vocabulary.error().code).exit_code;
  }
  galley::grammar::LineServer server({vocabulary->vocabulary, vocabulary->markers,
                                      [] {
                                        const auto now = std::chrono::steady_clock::now().time_since_epoch();
                                        return static_cast<std::uint64_t>(
                                            std::chrono::duration_cast<std::chrono::microseconds>(now).count());
                                      },
                                      "0.1.0"});
  std::string line;
  while (!server.done() && std::getline(std::cin, line)) std::cout << server.Handle(line) << "\n" << std::flush;
  return 0;
}
