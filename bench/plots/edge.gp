# Requests that have passed around the edge of a window, one line an algorithm.
height = 760
load "style.gp"
set multiplot layout 2,1 title "100 requests in 10 s: a single one, and 9 s later 3 in each millisecond" \
  font "DejaVu Sans Bold,15"
set xrange [-10:25]
set xtics 5
set arrow 1 from first 0, graph 0 to first 0, graph 1 nohead linecolor "#666666" dashtype 3
set label 1 "edge of an aligned window" at first 0.3, graph 0.05 textcolor "#444444"
colours = blue." ".orange." ".green." ".pink." ".sky." ".yellow
set yrange [0:*]

set ylabel "passed so far, windows"
plot for [i=2:7] ARG1 using 1:i with steps linewidth 1.6 dashtype (i % 2 + 1) \
       linecolor rgb word(colours, i - 1) title columnheader(i)

set ylabel "passed so far, buckets"
set xlabel "seconds from the edge"
plot for [i=8:11] ARG1 using 1:i with steps linewidth 1.6 dashtype (i % 2 + 1) \
       linecolor rgb word(colours, i - 7) title columnheader(i)
unset multiplot
