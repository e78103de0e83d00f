module sluice.dev/tests/node/pause

go 1.24.0
