// SPDX-License-Identifier: Apache-2.0
// Ctrl-C: the first asks the run to end after its step with the model saved, the second ends the process at once.
#pragma once

namespace expertmesh::app {

void install_signal_handlers();
bool stop_requested();

}  // namespace expertmesh::app
