// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/codec_case.h"

namespace galley::protocol::internal {

Json RunStreamCase(const Json&, const CodecServeOptions&) {
  return Json::MakeObject({});
}

}  // namespace galley::protocol::internal
