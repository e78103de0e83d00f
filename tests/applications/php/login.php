<?php
// A script that has a path of its own.
require __DIR__ . '/../handler.php';
answer('login.php');
