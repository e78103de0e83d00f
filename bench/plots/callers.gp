# Throughput and CPU time over the number of callers: medians, with bars from the lowest to the highest round.
height = 720
load "style.gp"
set multiplot layout 2,1 title "Redis store, 100k keys: Redis on one core, callers on another" \
  font "DejaVu Sans Bold,15"
set logscale x 2
set xrange [0.9:570]
set xtics 2
set bars 0
value(side, name) = column(sprintf("%s_%s", side, name))

set ylabel "checks per second"
set yrange [0:*]
set format y "%.0s%c"
plot for [i=1:2] ARG1 using 1:(value(word("sluice multi", i), "checks_per_second_median")) \
       with linespoints pointtype 7 pointsize 0.5 linewidth 1.5 linecolor rgb word(blue." ".orange, i) \
       title word("Sluice MULTI/INCRBY", i), \
     for [i=1:2] ARG1 using 1:(value(word("sluice multi", i), "checks_per_second_median")): \
       (value(word("sluice multi", i), "checks_per_second_lowest")): \
       (value(word("sluice multi", i), "checks_per_second_highest")) \
       with yerrorbars pointtype 0 linewidth 5 linecolor rgb "#b0".substr(word(blue." ".orange, i), 2, 7) notitle

set ylabel "CPU time a check, µs"
set xlabel "callers, each waiting for its response"
set logscale y 2
set yrange [*:*]
set format y "%g"
set key right top
plot for [v in "redis client"] for [i=1:2] ARG1 \
       using 1:(value(word("sluice multi", i), v."_us_per_check_median")) \
       with linespoints pointtype (v eq "redis" ? 7 : 6) pointsize 0.5 linewidth 1.5 \
       dashtype (v eq "redis" ? 1 : 2) linecolor rgb word(blue." ".orange, i) \
       title word("Sluice MULTI/INCRBY", i).(v eq "redis" ? ": CPU of Redis" : ": CPU of the client"), \
     for [v in "redis client"] for [i=1:2] ARG1 \
       using 1:(value(word("sluice multi", i), v."_us_per_check_median")): \
       (value(word("sluice multi", i), v."_us_per_check_lowest")): \
       (value(word("sluice multi", i), v."_us_per_check_highest")) \
       with yerrorbars pointtype 0 linewidth 5 linecolor rgb "#b0".substr(word(blue." ".orange, i), 2, 7) notitle
unset multiplot
