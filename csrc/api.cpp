// The parts of the C ABI that belong to no kernel and no choice.
#include "parallel.hpp"
#include "proxbit.h"

int pb_abi(void) { return PB_ABI; }

void pb_use_team(pb_team team) { proxbit::use_team(team); }
