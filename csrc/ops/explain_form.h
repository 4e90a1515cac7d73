// In which form `explain` answers.
#pragma once

namespace xgemm::ops {

struct ExplainForm {
  bool json = false;        // else in words
  bool candidates = false;  // the JSON lists all that were weighed
};

}  // namespace xgemm::ops
