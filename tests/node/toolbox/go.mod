module sluice.dev/tests/node/toolbox

go 1.24.0
