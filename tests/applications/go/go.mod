module application

go 1.23
