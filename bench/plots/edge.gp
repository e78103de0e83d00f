# Requests that have passed around the edge of a window, one line an algorithm.
data = ARG1
svg = ARG2
height = 760
load "style.gp"
set multiplot layout 2,1 title "Limit of 100 requests in 10 s: one request, and 9 s later 3 a millisecond" \
  font "DejaVu Sans Bold,15"
set xrange [-10:25]
set xtics 5
set yrange [0:600]
set ytics 100
colours = blue." ".orange." ".green." ".pink." ".sky." ".yellow
set arrow 1 from first 0, graph 0 to first 0, graph 0.5 nohead linecolor "#444444" dashtype (4,4)
set label 1 "edge of an aligned window" at first 0.3, graph 0.05 textcolor "#444444"

set ylabel "passed so far: windows"
plot for [i=2:7] data using 1:i with steps linewidth 1.6 dashtype i % 2 + 1 \
       linecolor rgb word(colours, i - 1) title columnheader(i)

unset label 1
unset arrow 1
set ylabel "passed so far: buckets"
set xlabel "seconds from the edge"
plot for [i=8:11] data using 1:i with steps linewidth 1.6 dashtype i % 2 + 1 \
       linecolor rgb word(colours, i - 7) title columnheader(i)
unset multiplot
