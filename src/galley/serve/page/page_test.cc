// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/page/page.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace galley::serve {
namespace {

TEST(Page, IsTheFile) {
  std::ostringstream file;
  file << std::ifstream(std::string(GALLEY_SOURCE_DIR) + "/src/galley/serve/page/page.html").rdbuf();
  EXPECT_EQ(PageHtml(), file.str());
}

// What would be loaded or called from elsewhere has a scheme; the page's own calls are relative.
TEST(Page, NeedsNothingFromOutside) {
  const std::string page(PageHtml());
  std::string rest = page;
  for (const std::string_view harmless : {"http://www.w3.org/2000/svg"}) {  // a name of XML, loaded by nobody
    for (std::size_t at; (at = rest.find(harmless)) != std::string::npos;) rest.erase(at, harmless.size());
  }
  for (const std::string_view sign : {"http:", "https:", "//cdn", "@import", "<script src", "innerHTML", "eval("}) {
    EXPECT_EQ(rest.find(sign), std::string::npos) << sign;
  }
}

}  // namespace
}  // namespace galley::serve
