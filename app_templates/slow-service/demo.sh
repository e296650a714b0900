#!/bin/sh
# Sends 400 payments to the embedded log, has a slow service assess them and shows what became of them.
# Kill it at any moment and start it again: it goes on where it was, and each payment is counted once.
# AGENTIC names an agentic that is not on the PATH.
set -eu
agentic=${AGENTIC:-agentic}
stood=$(pwd)
cd "$(dirname "$0")"

"$agentic" -A app send payments --jsonl data/payments.jsonl --resume
echo "The service is slow: this takes some seconds. What the worker says goes to worker.log."
"$agentic" -A app run 2>worker.log || { cat worker.log >&2; exit 1; }
echo
echo "What became of the payments:"
"$agentic" -A app tables ls outcomes
echo
echo "Those that were given up, and why:"
"$agentic" -A app dead-letters ls failed
echo
echo "Where to look next:"
if [ "$(pwd)" != "$stood" ]; then
    echo "  cd \"$(pwd)\""
fi
if ! command -v agentic >/dev/null; then
    echo "  . \"$(dirname "$agentic")/activate\""
fi
echo "  agentic -A app tail assessed -n 10            # the last answers"
echo "  agentic -A app dead-letters show failed 0@0   # all of one dead letter"
echo "  agentic -A app worker --live                  # a worker that stays, and what it is at"
echo "and into app.py, the program, and README.md, what to try with it."
