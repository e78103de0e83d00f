# Responses and waits in each second while Redis is killed and started again.
height = 680
load "style.gp"
stats ARG1 using "killed_s" name "killed" nooutput
stats ARG1 using "restarted_s" name "restarted" nooutput
set multiplot layout 2,1 title "Redis is killed under load and started again" font "DejaVu Sans Bold,15"
set xrange [0:15]
set xtics 1
set style fill solid 0.85 noborder
set boxwidth 0.86
do for [event in "killed restarted"] {
  at = value(event."_mean")
  n = event eq "killed" ? 1 : 2
  set arrow n from first at, graph 0 to first at, graph 1 nohead front linecolor "#333333" dashtype 3
  set label n event at first at + 0.1, graph 0.78 front textcolor "#333333"
}

set ylabel "checks in each second"
set yrange [0:4000]
set key top left horizontal
plot ARG1 using ($1 + 0.5):(column("admitted") + column("failed")) with boxes linecolor rgb orange \
       title "no response: onStoreFailure decides", \
     ARG1 using ($1 + 0.5):"admitted" with boxes linecolor rgb blue title "admitted by Redis"

set ylabel "longest wait of a check, ms"
set xlabel "seconds"
set logscale y
set yrange [0.1:200]
plot ARG1 using ($1 + 0.5):"longest_wait_ms" with boxes linecolor rgb green title "longest wait in each second", \
     50 with lines linecolor rgb "#333333" dashtype 2 title "latency budget, 50 ms"
unset multiplot
