# Responses and waits in each second while Redis is killed and started again.
data = ARG1
svg = ARG2
height = 700
load "style.gp"
stats data using "killed_s" name "killed" nooutput
stats data using "restarted_s" name "restarted" nooutput
set multiplot layout 2,1 title "Redis is killed under load and started again" font "DejaVu Sans Bold,15"
set xrange [0:15]
set xtics 1
set style fill solid 1 noborder
set boxwidth 0.86
set key outside top left horizontal
do for [n=1:2] {
  event = word("killed restarted", n)
  at = value(event."_mean")
  set arrow n from first at, graph 0 to first at, graph 1 nohead front linecolor "#222222" dashtype (4,4)
  set label n event at first at + 0.1, graph 0.95 front textcolor "#222222"
}

set ylabel "checks in each second"
set yrange [0:*]
set offsets 0, 0, graph 0.12, 0
plot data using ($1 + 0.5):(column("admitted") + column("failed")) with boxes linecolor rgb orange \
       title "no response, onStoreFailure decides", \
     data using ($1 + 0.5):"admitted" with boxes linecolor rgb blue title "admitted by Redis"

set ylabel "longest wait of a check, ms"
set xlabel "seconds"
set logscale y
set yrange [0.1:300]
plot data using ($1 + 0.5):"longest_wait_ms" with boxes linecolor rgb green \
       title "longest wait in each second", \
     50 with lines linecolor rgb "#222222" dashtype 2 title "latency budget, 50 ms"
unset multiplot
