# Throughput and CPU time over the number of callers: medians, with bars from the lowest to the highest round.
data = ARG1
svg = ARG2
height = 720
load "style.gp"
set multiplot layout 2,1 title "Redis store, 100k keys: Redis on one core, callers on another" \
  font "DejaVu Sans Bold,15"
set logscale x 2
set xrange [0.9:570]
set xtics 2

sides = "sluice multi"
name(i) = word("Sluice MULTI/INCRBY", i)
colour(i) = word(blue." ".orange, i)
translucent(i) = "#b0".substr(colour(i), 2, 7)
median(i, value) = column(sprintf("%s_%s_median", word(sides, i), value))
lowest(i, value) = column(sprintf("%s_%s_lowest", word(sides, i), value))
highest(i, value) = column(sprintf("%s_%s_highest", word(sides, i), value))

checks = "checks_per_second"
set ylabel "checks per second"
set yrange [0:*]
set format y "%.0s%c"
plot for [i=1:2] data using 1:(lowest(i, checks)):(0):(highest(i, checks) - lowest(i, checks)) \
       with vectors nohead linewidth 5 linecolor rgb translucent(i) notitle, \
     for [i=1:2] data using 1:(median(i, checks)) \
       with linespoints pointtype 7 pointsize 0.5 linewidth 1.5 linecolor rgb colour(i) title name(i)

redis = "redis_us_per_check"
client = "client_us_per_check"
set ylabel "CPU time a check, µs"
set xlabel "callers, each waiting for its response"
set logscale y 2
set yrange [*:*]
set format y "%g"
set key right top
plot for [v in redis." ".client] for [i=1:2] data using 1:(lowest(i, v)):(0):(highest(i, v) - lowest(i, v)) \
       with vectors nohead linewidth 5 linecolor rgb translucent(i) notitle, \
     for [i=1:2] data using 1:(median(i, redis)) with linespoints pointtype 7 pointsize 0.5 linewidth 1.5 \
       linecolor rgb colour(i) title name(i).": CPU of Redis", \
     for [i=1:2] data using 1:(median(i, client)) with linespoints pointtype 6 pointsize 0.5 linewidth 1.5 \
       dashtype 2 linecolor rgb colour(i) title name(i).": CPU of the client"
unset multiplot
