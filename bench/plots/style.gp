# Shared by all plots, which are drawn by `gnuplot -c NAME.gp DATA.tsv OUTPUT.svg` in this folder. The parts in
# bench/src/parts/ name the columns. Expects the variables height, in pixels, and svg, the output.
set terminal svg size 800,height fixed enhanced font "DejaVu Sans,13" background "#ffffff" linewidth 1.4
set encoding utf8
set output svg
set datafile separator tab
set datafile columnheaders
set border 3 linecolor "#444444"
set tics nomirror out scale 0.6
set grid ytics linetype 1 linecolor "#dddddd" linewidth 0.6
set key left top Left reverse samplen 2.2 spacing 1.15
set title font "DejaVu Sans Bold,15" noenhanced
set lmargin 10
set rmargin 3
# Colours that people with colour blindness tell apart: Okabe and Ito, https://jfly.uni-koeln.de/color/.
blue = "#0072b2"
orange = "#d55e00"
green = "#009e73"
pink = "#cc79a7"
sky = "#56b4e9"
yellow = "#e69f00"
