"""Classification of callers' images: conversion, preparation of a plan, and its run."""
