// SPDX-License-Identifier: Apache-2.0
#include "galley/text/utf8.h"
#include <gtest/gtest.h>
