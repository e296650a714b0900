#!/bin/sh
# Sends a week of departures to the embedded log, works them off and shows what came out.
# Kill it at any moment and start it again: it goes on where it was, and the result is the same.
# AGENTIC names an agentic that is not on the PATH.
set -eu
agentic=${AGENTIC:-agentic}
stood=$(pwd)
cd "$(dirname "$0")"

"$agentic" -A app send departures --jsonl data/departures.jsonl.gz --resume
"$agentic" -A app run --live
echo
echo "The last long delays of the week:"
"$agentic" -A app tail alerts -n 5
echo
echo "Departures and mean delay of the first carriers, from the table:"
"$agentic" -A app tables ls carriers --limit 5
echo
echo "Departures and mean delay in the last hours of each airport; each hour came once, when it was closed:"
"$agentic" -A app tail hourly -n 9
echo
echo "Departures that were reported when their hour was closed, and by how many minutes too late:"
"$agentic" -A app tail missed -n 5
echo
echo "Where to look next:"
if [ "$(pwd)" != "$stood" ]; then
    echo "  cd \"$(pwd)\""
fi
if ! command -v agentic >/dev/null; then
    echo "  . \"$(dirname "$agentic")/activate\""
fi
echo "  agentic -A app tail late -n 20           # the late flights"
echo "  agentic -A app tables ls carriers        # the table of all carriers"
echo "  agentic -A app tables get carriers UA    # one of its rows"
echo "  agentic -A app tail hourly -n 50         # more hours, in the order in which they were closed"
echo "  agentic -A app why hours                 # up to when hours are closed, and what open ones wait for"
echo "  agentic -A app topics                    # what the log holds"
echo "  agentic -A app groups describe           # how far the app has come"
echo "and into app.py, the program, and README.md, what to try with it."
